"""The control plane is killed at each write of the catalog that a driver requests: inside the transaction, and after
it.

The run of all tests uses a real driver. The control plane is restarted each time; the driver survives, and repeats
requests without an answer. Finally the history is compared with the sequential oracle.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from epochal.client import Operation
from epochal.faults import ENVIRONMENT, Fault, FaultPoint
from epochal.service.catalog import writes
from epochal.service.catalog.writes import WRITES, Write
from epochal.service.domain.settings import Settings
from epochal.snapshots.store import SnapshotStore
from epochal.testing.drivers import encoded
from epochal.testing.invariants import violations
from epochal.testing.servers.control_plane import ControlPlane, control_plane, process_id
from tests.service.fault.faulty_application import CONFIGURATION, NAME, PIPELINE, Drivers, FaultyApplication
from tests.service.fault.planes import SECONDS, KilledPlane, running_plane

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

IN_AN_EPOCH = (writes.OPEN_EPOCH, writes.PREPARE_EPOCH, writes.COMMIT_EPOCH, writes.HEARTBEAT)
PATIENCE_SECONDS = 300
"""Timeout for a driver that starts on a busy machine."""
LOOK_AGAIN_SECONDS = 0.3
"""Interval of checks. Each one reads every manifest, and so slows the driver down."""
AT_THE_END = (writes.COMPLETE_DIRECTIVE, writes.FINISH_ATTEMPT)


def both(write: Write) -> list[FaultPoint]:
    return [write.written, write.landed]


class Life:
    """One application under a control plane that is killed at given points."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.killed_at: list[str] = []
        self.application = FaultyApplication(folder, Drivers(), {})
        self.application.store = SnapshotStore(str(plane.home / "store"))
        self.application.catalog_url = f"sqlite:///{plane.home / 'catalog.sqlite'}"

    def begin(self, failing_epochs: int = 0) -> None:
        """Submit the application; tasks fail once in each of its first ``failing_epochs`` epochs."""
        application = self.application
        faults = [
            Fault("T3.pre-committed", "raise", once=str(application.folder / "flags" / f"failing-{number}"))
            for number in range(failing_epochs)
        ]
        configuration: dict[str, Any] = {name: value for name, value in CONFIGURATION.items() if name != "master"}
        if faults:
            configuration["spark"] = {f"spark.executorEnv.{ENVIRONMENT}": encoded(faults)}
        restart = {"max_restarts": 50, "backoff_seconds": 0.0}
        with self.plane.client() as client:
            client.applications.create(
                NAME,
                client.artifacts.upload(PIPELINE).sha256,
                parameters={
                    "input": str(application.input),
                    "output": str(application.folder / "output"),
                    "calls": str(application.folder / "calls"),
                },
                configuration={**configuration, "tolerable_failed_epochs": 5, "restart": restart},
            )

    def kill_next_at(self, *points: FaultPoint) -> None:
        """Restart the control plane, to be killed at the first of the points that it reaches."""
        flags = self.application.folder / "flags"
        faults = [asdict(Fault(point.name, "kill", once=str(flags / point.name))) for point in points]
        self.plane.environment[ENVIRONMENT] = json.dumps(faults)
        self.plane.restart(kill=True, wait=False)

    def wait_for_death(self, point: FaultPoint) -> None:
        """Wait until the process that serves drivers was killed. The control plane replaces it; the rest ends at the
        next restart."""
        flag = self.application.folder / "flags" / point.name
        self.plane.process.wait_until(lambda: flag.exists() or not self.plane.process.running, PATIENCE_SECONDS)
        assert flag.exists(), self.plane.process.log_end()
        self.killed_at.append(point.name)

    def kill_in_an_epoch(self, point: FaultPoint) -> None:
        self.kill_next_at(point)
        self.application.feed(1)
        self.wait_for_death(point)

    def run_without_faults(self) -> None:
        """Run a control plane without faults until every input file is processed and committed."""
        self.kill_next_at()
        self.plane.wait_until_ready()
        self.plane.process.wait_until(self._at_rest, PATIENCE_SECONDS)

    def kill_driver(self) -> None:
        with self.plane.client() as client:
            execution = client.application(NAME).executions.list()[0]
            (attempt,) = (attempt for attempt in execution.attempts if attempt.state == "running")
        assert attempt.process is not None
        os.kill(process_id(attempt.process), signal.SIGKILL)

    def request_stop(self) -> Operation:
        with self.plane.client() as client:
            return client.applications.stop(NAME)

    def _at_rest(self) -> bool:
        time.sleep(LOOK_AGAIN_SECONDS)
        records = self.application.epochs
        return self.application.files_left == 0 and bool(records) and records[-1].state in ("committed", "aborted")


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    with control_plane(tmp_path / "plane") as plane:
        yield Life(plane, tmp_path / "application")


def check(life: Life, *points: FaultPoint) -> None:
    assert life.killed_at == [point.name for point in points]
    assert violations(life.application.history, life.application.oracles) == []


@pytest.mark.parametrize("point", both(writes.PREPARE_EPOCH), ids=lambda point: point.name)
def test_control_plane_is_killed_at_the_commit_decision(
    settings: Settings, killed_plane: KilledPlane, point: FaultPoint
) -> None:
    """The driver's client of the catalog receives the answer of the next control plane, and the epoch is committed
    once. Killed inside the transaction, and after it, when the driver has no answer."""
    with running_plane(settings) as plane:
        plane.application()
        driver = plane.driver()
        driver.catalog._patience_seconds = SECONDS
        driver.epoch()
    with ThreadPoolExecutor(1) as calls:
        with killed_plane(settings, point.name):
            number = calls.submit(driver.epoch)
        with running_plane(settings) as plane:
            assert number.result(SECONDS) == 2
            driver.epoch()
            found = plane.get("/v1/applications/flights/epochs")["items"]
            assert sorted((item["epoch"], item["state"]) for item in found) == [(n, "committed") for n in (1, 2, 3)]
            plane.check_counters()


@pytest.mark.long
def test_control_plane_is_killed_at_every_write(life: Life) -> None:
    abort, begin, end = both(writes.ABORT_EPOCH), both(writes.BEGIN_ATTEMPT), [p for w in AT_THE_END for p in both(w)]
    epoch = [point for write in IN_AN_EPOCH for point in both(write)]
    # The first two epochs fail, and are aborted.
    life.begin(failing_epochs=2)
    for point in abort:
        life.kill_in_an_epoch(point)
    life.run_without_faults()
    for point in epoch:
        life.kill_in_an_epoch(point)
    life.run_without_faults()
    # The driver dies, and the next one begins.
    for point in begin:
        life.kill_driver()
        life.kill_next_at(point)
        life.wait_for_death(point)
        life.run_without_faults()
    # An epoch of the last driver, since a driver that only starts would end without carrying out the request.
    life.application.feed(1)
    life.run_without_faults()
    # The application is stopped: the request is carried out, and the attempt ends.
    life.kill_next_at(*end)
    life.plane.wait_until_ready()
    stop = life.request_stop()
    for number, point in enumerate(end):
        life.wait_for_death(point)
        life.kill_next_at(*end[number + 1 :])
    life.plane.wait_until_ready()
    with life.plane.client() as client:
        stopped = client.operations.wait(stop, timeout_seconds=60)
        assert stopped.state == "succeeded"
        assert client.applications.get(NAME).state == "stopped"
    check(life, *abort, *epoch, *begin, *end)
    assert {*abort, *epoch, *begin, *end} == {point for write in WRITES for point in both(write)}
