"""The control plane is killed at each write that a driver asks of the catalog: within the transaction, and after it.

In the run of all tests a real driver. The control plane is started again each time; the driver outlives it, and asks
once more for what it has no answer to. In the end the whole history is compared with the sequential oracle.
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
from tests.service.fault.planes import SECONDS, Doomed, living

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

IN_AN_EPOCH = (writes.OPEN_EPOCH, writes.PREPARE_EPOCH, writes.COMMIT_EPOCH, writes.HEARTBEAT)
PATIENCE_SECONDS = 300
"""For a driver that starts on a busy machine."""
LOOK_AGAIN_SECONDS = 0.3
"""To look is to read every manifest, which takes the time of what is waited for."""
AT_THE_END = (writes.COMPLETE_DIRECTIVE, writes.FINISH_ATTEMPT)


def both(write: Write) -> list[FaultPoint]:
    return [write.written, write.landed]


class Life:
    """One application under a control plane that dies where it is told."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.died: list[str] = []
        self.application = FaultyApplication(folder, Drivers(), {})
        self.application.store = SnapshotStore(str(plane.home / "store"))
        self.application.catalog_url = f"sqlite:///{plane.home / 'catalog.sqlite'}"

    def begin(self, failing_epochs: int = 0) -> None:
        """Submit it; tasks fail once in each of its first ``failing_epochs`` epochs."""
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

    def dies_next_at(self, *points: FaultPoint) -> None:
        """Another control plane, which will die at the first of the points that it comes to."""
        flags = self.application.folder / "flags"
        faults = [asdict(Fault(point.name, "kill", once=str(flags / point.name))) for point in points]
        self.plane.environment[ENVIRONMENT] = json.dumps(faults)
        self.plane.restart(kill=True, wait=False)

    def wait_for_death(self, point: FaultPoint) -> None:
        """Of the process that answers drivers, which the control plane replaces; all of it ends with the next one."""
        flag = self.application.folder / "flags" / point.name
        self.plane.process.wait_until(lambda: flag.exists() or not self.plane.process.running, PATIENCE_SECONDS)
        assert flag.exists(), self.plane.process.log_end()
        self.died.append(point.name)

    def dies_in_an_epoch(self, point: FaultPoint) -> None:
        self.dies_next_at(point)
        self.application.feed(1)
        self.wait_for_death(point)

    def lives(self) -> None:
        """A control plane without faults; every input file is taken and committed."""
        self.dies_next_at()
        self.plane.wait_until_ready()
        self.plane.process.wait_until(self._at_rest, PATIENCE_SECONDS)

    def kill_driver(self) -> None:
        with self.plane.client() as client:
            execution = client.application(NAME).executions.list()[0]
            (attempt,) = (attempt for attempt in execution.attempts if attempt.state == "running")
        assert attempt.process is not None
        os.kill(process_id(attempt.process), signal.SIGKILL)

    def order_to_stop(self) -> Operation:
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
    assert life.died == [point.name for point in points]
    assert violations(life.application.history, life.application.oracles) == []


@pytest.mark.parametrize("point", both(writes.PREPARE_EPOCH), ids=lambda point: point.name)
def test_it_dies_at_the_commit_decision(settings: Settings, doomed: Doomed, point: FaultPoint) -> None:
    """What a driver's client of the catalog sees: the next control plane has the answer, and the epoch is there once.

    Within the transaction, and after it, when the driver has no answer.
    """
    with living(settings) as plane:
        plane.application()
        driver = plane.driver()
        driver.catalog._patience_seconds = SECONDS
        driver.epoch()
    with ThreadPoolExecutor(1) as calls:
        with doomed(settings, point.name):
            number = calls.submit(driver.epoch)
        with living(settings) as plane:
            assert number.result(SECONDS) == 2
            driver.epoch()
            found = plane.get("/v1/applications/flights/epochs")["items"]
            assert sorted((item["epoch"], item["state"]) for item in found) == [(n, "committed") for n in (1, 2, 3)]
            plane.check_counters()


@pytest.mark.long
def test_it_dies_at_every_write(life: Life) -> None:
    abort, begin, end = both(writes.ABORT_EPOCH), both(writes.BEGIN_ATTEMPT), [p for w in AT_THE_END for p in both(w)]
    epoch = [point for write in IN_AN_EPOCH for point in both(write)]
    # Its first two epochs fail, and are aborted.
    life.begin(failing_epochs=2)
    for point in abort:
        life.dies_in_an_epoch(point)
    life.lives()
    for point in epoch:
        life.dies_in_an_epoch(point)
    life.lives()
    # Its driver dies; the next one begins.
    for point in begin:
        life.kill_driver()
        life.dies_next_at(point)
        life.wait_for_death(point)
        life.lives()
    # An epoch of the last driver: one that only starts would end at once, without carrying the order out.
    life.application.feed(1)
    life.lives()
    # It is stopped: the order is carried out, and the attempt ends.
    life.dies_next_at(*end)
    life.plane.wait_until_ready()
    order = life.order_to_stop()
    for number, point in enumerate(end):
        life.wait_for_death(point)
        life.dies_next_at(*end[number + 1 :])
    life.plane.wait_until_ready()
    with life.plane.client() as client:
        stopped = client.operations.wait(order, timeout_seconds=60)
        assert stopped.state == "succeeded"
        assert client.applications.get(NAME).state == "stopped"
    check(life, *abort, *epoch, *begin, *end)
    assert {*abort, *epoch, *begin, *end} == {point for write in WRITES for point in both(write)}
