"""Machines without space, executors that Spark ends when they are idle, and cached blocks that it evicts: an
application fails with a clear message or continues, and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.testing.invariants import violations
from epochal.testing.servers.spark_standalone import StandaloneCluster, standalone_cluster
from tests.kit.servers import or_skipped
from tests.servers.cluster.test_placement import EXECUTORS, SUBTASKS, WORKERS, feed
from tests.service.fault.faulty_application import Drivers, FaultyApplication

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.server, pytest.mark.timeout(900)]

EPOCHS = 6
TOO_SMALL = 64 << 10
IDLE = "5s"
ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": IDLE,
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": IDLE,
    "spark.dynamicAllocation.shuffleTracking.timeout": IDLE,
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "run" / "cache"


@pytest.fixture
def machines(cache: Path, request: pytest.FixtureRequest) -> Iterator[StandaloneCluster]:
    """``request.param``: sizes of disks."""
    yield from or_skipped(standalone_cluster(WORKERS, 2, private=cache, disks=request.param))


@pytest.mark.parametrize("machines", [{0: TOO_SMALL}], indirect=True)
def test_a_full_disk_of_one_machine_is_named_and_nothing_is_lost(
    machines: StandaloneCluster, cache: Path, tmp_path: Path
) -> None:
    configuration = {"parallelism": SUBTASKS, "max_parallelism": 96, "state_backend": "lmdb", **EXECUTORS}
    application = FaultyApplication(tmp_path, Drivers(), configuration)
    feed(application, range(EPOCHS))
    driver = application.start(epochs=EPOCHS, master=machines.master_url)
    assert driver.wait() != 0
    assert "no space left" in driver.log_end() and str(cache) in driver.log_end()

    machines.workers[0].stop()
    driver = application.start(epochs=EPOCHS, master=machines.master_url)
    assert driver.wait() == 0, driver.log_end()
    assert violations(application.history, application.oracles) == []


@pytest.mark.parametrize("machines", [{}], indirect=True)
def test_executors_that_spark_ends_when_idle_and_starts_again_lose_nothing(
    machines: StandaloneCluster, tmp_path: Path
) -> None:
    configuration = {"parallelism": SUBTASKS, "max_parallelism": 96, **EXECUTORS, **ALLOCATION}
    application = FaultyApplication(tmp_path, Drivers(), configuration)
    feed(application, range(EPOCHS))
    driver = application.start(epochs=2 * EPOCHS, master=machines.master_url)
    try:
        driver.wait_until(lambda: len(application.epochs) >= EPOCHS and not machines.executors())
        feed(application, range(EPOCHS, 2 * EPOCHS))
        assert driver.wait() == 0, driver.log_end()
    finally:
        driver.kill()
    assert violations(application.history, application.oracles) == []


EVICTING = """

def _evict():
    import time

    from pyspark.sql import SparkSession

    while True:
        time.sleep(0.5)
        session = SparkSession._instantiatedSession
        if session is not None:
            session.catalog.clearCache()
            print("evicted", flush=True)


_application = build


def build(parameters: Parameters) -> Pipeline:
    import threading

    threading.Thread(target=_evict, daemon=True).start()
    return _application(parameters)
"""


@pytest.mark.parametrize("machines", [{}], indirect=True)
def test_evicted_slots_are_computed_again_and_nothing_is_lost(machines: StandaloneCluster, tmp_path: Path) -> None:
    """The slots of placements are cached blocks, which a full executor evicts."""
    configuration = {"parallelism": SUBTASKS, "max_parallelism": 96, **EXECUTORS}
    application = FaultyApplication(tmp_path, Drivers(), configuration)
    plain = application.pipeline
    application.pipeline = tmp_path / plain.name
    application.pipeline.write_text(plain.read_text() + EVICTING)
    feed(application, range(EPOCHS))
    driver = application.start(epochs=EPOCHS, master=machines.master_url)
    assert driver.wait() == 0, driver.log_end()
    assert "evicted" in driver.log.read_text()
    assert violations(application.history, application.oracles) == []
