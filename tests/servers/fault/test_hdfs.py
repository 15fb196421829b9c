"""HDFS as source and sink under faults: drivers and tasks killed at every step, zombies, a NameNode that dies.

Usual runs kill a driver at one step of each kind; test_hdfs_faults.py crashes the sink alone at each. Each test has
its own application: without Spark in usual runs, with Spark and with HDFS as the source in long ones. After each driver
run no folder shows an undecided epoch. In the end folders and state equal the oracle at every epoch, and no staged file
is left.
"""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hdfs import InsecureClient

import epochal.backends.hdfs
from epochal.testing.drivers import SparkJvm
from epochal.testing.invariants import History, violations, visible_rows
from epochal.testing.oracle import Row, multiset, slices
from epochal.testing.servers.hdfs import HdfsServer
from tests.service.fault.faulty_application import (
    ORACLES,
    Drivers,
    FaultyApplication,
    check_that_a_zombie_changes_nothing,
)
from tests.service.fault.points import in_every_run, points_of

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

PIPELINE = Path(__file__).with_name("hdfs_application.py")
AHEAD = 3


POINTS = points_of(epochal.backends.hdfs)
DRIVER_POINTS = [point for point in POINTS if not point.startswith("T")]
TASK_POINTS = [point for point in POINTS if point.startswith("T")]
ONE_OF_EACH_CLASS = ("E5.hdfs.gathered-one", "R1.hdfs.claimed", "E5.hdfs.gathered-one", "E5.hdfs.renamed")
"""One of the files is gathered, twice; the predecessor is fenced; the epoch is visible but not yet recorded."""


class HdfsApplication(FaultyApplication):
    """The application, its folders of HDFS, and checks of their contents.

    Input files have the same paths in HDFS and on this machine, where the oracle reads them.
    """

    kind = "hdfs"
    pipeline = PIPELINE
    oracles = ORACLES[:1]

    def __init__(self, folder: Path, drivers: Drivers, server: HdfsServer) -> None:
        super().__init__(folder, drivers, {"parallelism": 2, "compact_after_epochs": 1000})
        self.server = server
        self.client = InsecureClient(server.url, user=server.user)
        self.client.makedirs(str(self.input))
        self.output = server.create_folder()

    def feed_rows(self, rows: Sequence[Row]) -> None:
        name = f"events-{self._files:05}.json"
        super().feed_rows(rows)
        if not self.drivers.spark:  # the source is the local folder
            return
        data = "".join(json.dumps(row) + "\n" for row in rows)
        self.client.write(f"{self.input}/_{name}", data=data, encoding="utf-8")
        self.client.rename(f"{self.input}/_{name}", f"{self.input}/{name}")

    @property
    def parameters(self) -> dict[str, Any]:
        where = {"url": self.server.url, "user": self.server.user}
        return {**where, "input": self.input, "output": self.output}

    def history_with_copies(self) -> History:
        """Return the history with local copies of the folders in HDFS, including hidden files."""
        outputs = {}
        with ThreadPoolExecutor(8) as threads:
            for name in ("totals", "late"):
                copy = outputs[name] = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
                for at, folders, files in self.client.walk(f"{self.output}/{name}"):
                    place = copy / at.removeprefix(f"{self.output}/{name}").lstrip("/")
                    for folder in folders:
                        (place / folder).mkdir()
                    list(threads.map(self._copy, [f"{at}/{file}" for file in files], [place / file for file in files]))
        return History(self.store, self.epochs, outputs)

    def _copy(self, path: str, copy: Path) -> None:
        with self.client.read(path) as file:
            copy.write_bytes(file.read())

    def shown(self) -> dict[str, list[str]]:
        """Return the visible epochs of each folder."""
        names = {name: self.client.list(f"{self.output}/{name}") for name in ("totals", "late")}
        return {name: sorted(item for item in found if item.startswith("epoch=")) for name, found in names.items()}

    def problems(self) -> list[str]:
        """Return all violations after the end of the application."""
        history = self.history_with_copies()
        found = violations(history, self.oracles)
        for _, manifest in history.snapshots:
            late = multiset(row for row in slices(manifest)["events"] if row["value"] > 50)
            if visible_rows(history.outputs["late"], manifest.epoch) != late:
                found.append(f"late, epoch {manifest.epoch}: not the rows of its slice")
        return found


@pytest.fixture
def application(tiered_drivers: Drivers, hdfs_server: HdfsServer, tmp_path: Path) -> HdfsApplication:
    """An application after one epoch, with input for further epochs."""
    application = HdfsApplication(tmp_path / "application", tiered_drivers, hdfs_server)
    application.feed(1 + AHEAD)
    driver = application.start(epochs=1)
    assert driver.wait() == 0, driver.log_end()
    return application


def undecided(application: HdfsApplication) -> list[str]:
    """Return visible epochs that were never decided."""
    decided = {f"epoch={record.epoch:010}" for record in application.history.decided}
    shown = application.shown()
    return [f"{name}: {epoch}" for name, epochs in shown.items() for epoch in epochs if epoch not in decided]


def kill_at(application: HdfsApplication, point: str) -> None:
    application.kill_at(application.fault(point), epochs=AHEAD)
    assert undecided(application) == []


def finish_and_check(application: HdfsApplication) -> None:
    application.finish()
    assert application.files_left == 0
    assert application.problems() == []


@pytest.mark.long
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_killed_driver_leaves_a_correct_target(application: HdfsApplication, point: str) -> None:
    kill_at(application, point)
    finish_and_check(application)


@pytest.mark.alternating(2)
def test_driver_killed_repeatedly_leaves_a_correct_target(application: HdfsApplication) -> None:
    """The driver is killed during a commit, and repeatedly during recovery, which redoes it."""
    for point in ONE_OF_EACH_CLASS:
        kill_at(application, point)
    finish_and_check(application)


def test_killed_tasks_upload_their_files_again(application: HdfsApplication) -> None:
    """Tasks die after the upload and before they return their handles; they are retried."""
    first = application.next_epoch
    application.feed(len(TASK_POINTS))
    faults = [application.fault(point, "kill", first + number) for number, point in enumerate(TASK_POINTS)]
    driver = application.start(task_faults=faults, epochs=application.files_left, master="local[2,4]")
    assert driver.wait() == 0, driver.log_end()
    assert [application.fired(fault) for fault in faults] == [True] * len(TASK_POINTS)
    assert application.problems() == []


@pytest.mark.long  # contract/test_hdfs_faults.py covers the sink alone
def test_commit_waits_for_the_name_node(application: HdfsApplication) -> None:
    """The NameNode is killed while files are gathered, restarted, and enters safe mode in a later epoch. The driver
    waits.

    Two sinks commit at the same time, so that one could fire the second fault of the same epoch during the first. The
    second fires in the next epoch that is not aborted.
    """
    first = application.next_epoch
    dies = application.fault("E5.hdfs.gathered-one", "stop", first)
    refuses = application.fault("E5.hdfs.gathered", "stop", first + 1)
    later = [replace(refuses, epoch=epoch) for epoch in range(first + 1, first + 100)]  # some are aborted
    driver = application.start(faults=[dies, *later], epochs=application.files_left, tolerable_failed_epochs=1000)
    driver.wait_until(lambda: application.fired(dies))
    driver.wait_until_stopped()
    application.server.stop_name_node(kill=True)
    driver.send(signal.SIGCONT)
    driver.wait_until(lambda: "cannot commit yet" in driver.log_end(1_000_000))
    application.server.start_name_node()

    driver.wait_until(lambda: application.fired(refuses))
    driver.wait_until_stopped()
    application.server.enter_safe_mode()
    known = len(driver.log_end(1_000_000))  # the NameNode may have started in safe mode
    try:
        driver.send(signal.SIGCONT)
        driver.wait_until(lambda: "the NameNode is in safe mode" in driver.log_end(1_000_000)[known:])
        assert undecided(application) == []
    finally:
        application.server.leave_safe_mode()
    assert driver.wait() == 0, driver.log_end()
    assert application.problems() == []


@pytest.mark.alternating(2)
def test_driver_started_in_safe_mode_waits(application: HdfsApplication) -> None:
    """The driver recovers a decided epoch that it cannot commit yet."""
    kill_at(application, "E5.hdfs.gathering")
    application.server.enter_safe_mode()
    try:
        driver = application.start(epochs=AHEAD - 1)
        driver.wait_until(lambda: "the NameNode is in safe mode" in driver.log_end(1_000_000))
        if application.drivers.spark:
            driver.wait_until(lambda: application.status.phase == "waiting")
            assert "the NameNode is in safe mode" in (application.status.detail or "")
        assert undecided(application) == []
    finally:
        application.server.leave_safe_mode()
    assert driver.wait() == 0, driver.log_end()
    assert application.problems() == []


@pytest.mark.parametrize("point", in_every_run(["E5.hdfs.gathered"], ["E5.hdfs.gathered-one", "E5.hdfs.gathered"]))
def test_zombie_changes_no_folder(application: HdfsApplication, own_jvm: SparkJvm | None, point: str) -> None:
    """The driver is paused in its commit, and resumed after its successor's end."""
    check_that_a_zombie_changes_nothing(application, own_jvm, point, application.shown, application.problems)


@pytest.mark.long
def test_driver_with_spark_is_killed_during_a_commit(drivers: Drivers, hdfs_server: HdfsServer, tmp_path: Path) -> None:
    application = HdfsApplication(tmp_path / "application", drivers, hdfs_server)
    application.feed(2)
    kill_at(application, "E5.hdfs.gathered-one")
    finish_and_check(application)
