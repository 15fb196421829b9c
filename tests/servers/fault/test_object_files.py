"""Files on an object store under faults: drivers and tasks killed at every step, zombies, a server that dies.

Usual runs kill a driver at one step of each kind; contract/test_s3_sink.py crashes the sink alone at each. Each test
has its own application: without Spark in usual runs, with Spark and with the bucket as the source in long ones. In the
end the committed files and the state equal the oracle at every epoch, and no object is left that no list names.
"""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import obstore
import pytest

import epochal.backends.object_files
from epochal.testing.drivers import SparkJvm
from epochal.testing.invariants import History, violations, visible_rows
from epochal.testing.oracle import Row, multiset, slices
from epochal.testing.servers.s3 import SeaweedServer
from tests.service.fault.faulty_application import (
    ORACLES,
    Drivers,
    FaultyApplication,
    check_that_a_zombie_changes_nothing,
)
from tests.service.fault.points import in_every_run, points_of

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

PIPELINE = Path(__file__).with_name("object_files_application.py")
AHEAD = 3
SINKS = ("totals", "late")

POINTS = points_of(epochal.backends.object_files)
DRIVER_POINTS = [point for point in POINTS if not point.startswith("T")]
TASK_POINTS = [point for point in POINTS if point.startswith("T")]
ONE_OF_EACH_CLASS = ("E5.objects.checked", "R1.objects.claimed", "E5.objects.checked", "E5.objects.listed")
"""The epoch is about to be committed, twice; the owner is checked; the epoch is visible but not yet recorded."""


class ObjectApplication(FaultyApplication):
    """The application, its folders in a bucket, and checks of their contents.

    Input files are also on this machine, where the oracle reads them.
    """

    kind = "objects"
    pipeline = PIPELINE
    oracles = ORACLES[:1]

    def __init__(self, folder: Path, drivers: Drivers, server: SeaweedServer, bucket: str) -> None:
        super().__init__(folder, drivers, {"parallelism": 2, "compact_after_epochs": 1000})
        self.server = server
        self.bucket = bucket
        self.objects = server.store(bucket)
        # The oracle reads the URLs of slices as paths.
        (folder / "s3:" / bucket).mkdir(parents=True)
        (folder / "s3:" / bucket / "in").symlink_to(self.input)
        (folder / "key").write_text(server.credentials.access_key)
        (folder / "secret").write_text(server.credentials.secret_key)

    def feed_rows(self, rows: Sequence[Row]) -> None:
        name = f"events-{self._files:05}.json"
        super().feed_rows(rows)
        data = "".join(json.dumps(row) + "\n" for row in rows)
        obstore.put(self.objects, f"in/{name}", data.encode())

    @property
    def parameters(self) -> dict[str, Any]:
        where = f"s3://{self.bucket}"
        variables = self.server.environment()
        return {
            "input": self.input,
            "source": f"{where}/in",
            "output": f"{where}/out",
            "endpoint": variables["AWS_ENDPOINT_URL"],
            "region": variables["AWS_REGION"],
            "key": self.folder / "key",
            "secret": self.folder / "secret",
        }

    def history_with_copies(self) -> History:
        """Return the history with local copies of the committed files, in folders of epochs."""
        outputs = {}
        for name in SINKS:
            copy = outputs[name] = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
            for path in self.committed(name):
                place = copy / path.removeprefix("_data/")
                place.parent.mkdir(exist_ok=True)
                place.write_bytes(self.read(f"out/{name}/{path}"))
        return History(self.store, self.epochs, outputs)

    def committed(self, name: str) -> list[str]:
        lists = [json.loads(self.read(path)) for path in self.paths(f"out/{name}/_epochs")]
        return sorted(file["path"] for content in lists for file in content["files"])

    def paths(self, folder: str) -> list[str]:
        return [found["path"] for page in obstore.list(self.objects, folder) for found in page]

    def read(self, path: str) -> bytes:
        return bytes(obstore.get(self.objects, path).bytes())

    def shown(self) -> dict[str, list[str]]:
        """Return the committed files of each folder."""
        return {name: self.committed(name) for name in SINKS}

    def problems(self) -> list[str]:
        """Return all violations after the end of the application."""
        with chdir(self.folder):
            return self._problems()

    def _problems(self) -> list[str]:
        history = self.history_with_copies()
        found = violations(history, self.oracles)
        for _, manifest in history.snapshots:
            late = multiset(row for row in slices(manifest)["events"] if row["value"] > 50)
            if visible_rows(history.outputs["late"], manifest.epoch) != late:
                found.append(f"late, epoch {manifest.epoch}: not the rows of its slice")
        for name in SINKS:
            left = {*self.paths(f"out/{name}/_data")} - {f"out/{name}/{path}" for path in self.committed(name)}
            found += [f"{path} was left behind" for path in sorted(left)]
        return found


@pytest.fixture
def application(tiered_drivers: Drivers, s3_server: SeaweedServer, bucket: str, tmp_path: Path) -> ObjectApplication:
    """An application after one epoch, with input for further epochs."""
    return started(tiered_drivers, s3_server, bucket, tmp_path)


def started(drivers: Drivers, server: SeaweedServer, bucket: str, folder: Path) -> ObjectApplication:
    application = ObjectApplication(folder / "application", drivers, server, bucket)
    application.feed(1 + AHEAD)
    driver = application.start(epochs=1)
    assert driver.wait() == 0, driver.log_end()
    return application


def kill_at(application: ObjectApplication, point: str) -> None:
    """Kill the driver at the point. No undecided epoch is visible."""
    application.kill_at(application.fault(point), epochs=AHEAD)
    decided = {f"_data/epoch={record.epoch:010}" for record in application.history.decided}
    shown = {path.rpartition("/")[0] for paths in application.shown().values() for path in paths}
    assert shown <= decided


def finish_and_check(application: ObjectApplication) -> None:
    application.finish()
    assert application.files_left == 0
    assert application.problems() == []


@pytest.mark.long
@pytest.mark.parametrize("point", [*(point for point in DRIVER_POINTS if point.startswith("E5")), "R1.objects.claimed"])
def test_killed_driver_leaves_a_correct_target(application: ObjectApplication, point: str) -> None:
    kill_at(application, point)
    finish_and_check(application)


@pytest.mark.alternating(2)
def test_driver_killed_repeatedly_leaves_a_correct_target(application: ObjectApplication) -> None:
    """The driver is killed during a commit, and repeatedly during recovery, which redoes it."""
    for point in ONE_OF_EACH_CLASS:
        kill_at(application, point)
    finish_and_check(application)


@pytest.mark.long
def test_killed_tasks_upload_their_files_again(
    drivers: Drivers, s3_server: SeaweedServer, bucket: str, tmp_path: Path
) -> None:
    """Tasks die after the upload and before they return their handles; they are retried.

    With Spark only: the engine without Spark forks a task from the driver, whose client of the store works in its own
    process only.
    """
    application = started(drivers, s3_server, bucket, tmp_path)
    first = application.next_epoch
    application.feed(len(TASK_POINTS))
    faults = [application.fault(point, "kill", first + number) for number, point in enumerate(TASK_POINTS)]
    driver = application.start(task_faults=faults, epochs=application.files_left, master="local[2,4]")
    assert driver.wait() == 0, driver.log_end()
    assert [application.fired(fault) for fault in faults] == [True] * len(TASK_POINTS)
    assert application.problems() == []


@pytest.mark.alternating(2)
def test_commit_waits_for_the_server(application: ObjectApplication) -> None:
    """The server is killed before a commit and restarted. The driver waits."""
    point = application.fault("E5.objects.checked", "stop", application.next_epoch)
    driver = application.start(faults=[point], epochs=application.files_left, tolerable_failed_epochs=1000)
    driver.wait_until(lambda: application.fired(point))
    driver.wait_until_stopped()
    application.server.stop(kill=True)
    try:
        driver.send(signal.SIGCONT)
        driver.wait_until(lambda: "cannot commit yet" in driver.log_end(1_000_000))
    finally:
        application.server.start()
    assert driver.wait() == 0, driver.log_end()
    assert application.problems() == []


@pytest.mark.parametrize("point", in_every_run(["E5.objects.checked"], ["E5.objects.checked", "E5.objects.listed"]))
def test_zombie_changes_no_folder(application: ObjectApplication, own_jvm: SparkJvm | None, point: str) -> None:
    """The driver is paused in its commit, and resumed after its successor's end."""
    check_that_a_zombie_changes_nothing(application, own_jvm, point, application.shown, application.problems)


@pytest.mark.long
def test_driver_with_spark_is_killed_during_a_commit(
    drivers: Drivers, s3_server: SeaweedServer, bucket: str, tmp_path: Path
) -> None:
    application = started(drivers, s3_server, bucket, tmp_path)
    kill_at(application, "E5.objects.checked")
    finish_and_check(application)
