"""Fixtures: servers from which drivers are forked, their JVMs, and applications under fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epochal.service.domain.settings import Settings
from epochal.testing.drivers import SparkJvm, driver_server
from epochal.testing.fork_server import ForkServer
from epochal.testing.servers.process import free_port
from tests.service.fault import planes
from tests.service.fault.faulty_application import (
    FILES_AHEAD,
    LOCAL_LIFE,
    TIME_LIFE,
    Drivers,
    FaultyApplication,
    NewApplication,
)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer | None]:
    """The server from which the drivers and control planes of these tests are forked."""
    server = driver_server(LOCAL_LIFE, TIME_LIFE, planes.PROCESS)
    yield server
    if server is not None:
        server.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a control plane."""
    return Settings(data=tmp_path / "data", port=free_port())


@pytest.fixture
def killed_plane(fork_server: ForkServer | None, tmp_path: Path) -> planes.KilledPlane:
    return planes.killed_planes(fork_server, tmp_path / "plane.log")


@pytest.fixture(scope="session")
def without_spark(fork_server: ForkServer | None) -> Drivers:
    """Drivers without Spark, which are killed at every point in every run, since each takes a fraction of a second."""
    if fork_server is None:
        pytest.skip("processes are forked only where /proc shows that it is safe")
    return Drivers(server=fork_server, spark=False)


@pytest.fixture(scope="session")
def prepared_application(without_spark: Drivers, tmp_path_factory: pytest.TempPathFactory) -> FaultyApplication:
    """An application after three epochs, with input for more. Tests work on copies of it."""
    configuration = {"compact_after_epochs": 3, "max_uncommitted_epochs": 2}
    application = FaultyApplication(tmp_path_factory.mktemp("prepared_application"), without_spark, configuration)
    application.feed(3 + FILES_AHEAD)
    driver = application.start(epochs=3)
    assert driver.wait() == 0, driver.log_end()
    return application


@pytest.fixture
def local(prepared_application: FaultyApplication, tmp_path: Path) -> FaultyApplication:
    """A copy of the prepared application, with a driver without Spark."""
    return prepared_application.copy(tmp_path / "copy")


@pytest.fixture
def new_local(without_spark: Drivers, tmp_path: Path) -> NewApplication:
    """A new application with its own input, and a driver without Spark."""

    def make(**configuration: Any) -> FaultyApplication:
        return FaultyApplication(tmp_path / "application", without_spark, configuration)

    return make


@pytest.fixture(scope="package")
def drivers(fork_server: ForkServer | None) -> Iterator[Drivers]:
    """Drivers that share one JVM."""
    with SparkJvm() as jvm:
        yield Drivers(jvm, fork_server)


@pytest.fixture(scope="package")
def zombie_jvm() -> Iterator[SparkJvm]:
    """The JVM of zombie drivers; their successors use the shared one at the same time."""
    with SparkJvm() as running:
        yield running


@pytest.fixture(params=["without Spark", pytest.param("with Spark", marks=pytest.mark.long)])
def tiered_drivers(request: pytest.FixtureRequest) -> Drivers:
    """Drivers without Spark in every run, and with Spark in the run of all tests."""
    found: Drivers = request.getfixturevalue("without_spark" if request.param == "without Spark" else "drivers")
    return found


@pytest.fixture
def new_tiered_application(tiered_drivers: Drivers, tmp_path: Path) -> NewApplication:
    """A new application, without Spark in every run, and with Spark in the run of all tests."""

    def make(**configuration: Any) -> FaultyApplication:
        return FaultyApplication(tmp_path / "application", tiered_drivers, configuration)

    return make


@pytest.fixture
def own_jvm(request: pytest.FixtureRequest, tiered_drivers: Drivers) -> SparkJvm | None:
    """A zombie's JVM, if there is Spark: its successor uses the shared one at the same time."""
    found: SparkJvm | None = request.getfixturevalue("zombie_jvm") if tiered_drivers.spark else None
    return found


@pytest.fixture(scope="module")
def new_application(drivers: Drivers, tmp_path_factory: pytest.TempPathFactory) -> NewApplication:
    def make(**configuration: Any) -> FaultyApplication:
        return FaultyApplication(tmp_path_factory.mktemp("application"), drivers, configuration)

    return make
