"""State in S3 while Spark repeats tasks, and while writes of a dead driver land late."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from epochal.faults import Fault
from epochal.service.catalog.standalone import standalone_epochs
from epochal.snapshots import layout
from epochal.snapshots.packs import TASK_BYTES
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.testing.drivers import DriverPlan, DriverProcess
from epochal.testing.invariants import History, broken_lineage, orphans, unfinished_epochs
from epochal.testing.servers.s3_proxy import S3Proxy
from tests.servers.chaos import driver as store_driver
from tests.servers.contract.test_s3_snapshots import in_environment

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(400)]

KEYS = ("a", "b", "c", "d")
CONFIGURATION = {
    "parallelism": 2,
    "epoch_interval_seconds": 0,
    "compact_after_epochs": 1000,
    "master": "local[2,4]",  # a failed task is repeated
}


class Application:
    """An aggregate over files, with its state in a bucket. An epoch processes a file."""

    def __init__(self, store: SnapshotStore, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.chance = random.Random(7)
        self.events: list[dict[str, str]] = []
        self.files = self.drivers = 0
        (folder / "in").mkdir()

    def feed(self, characters: int = 10) -> None:
        """Add a file with an event for each key."""
        self.files += 1
        rows = [{"k": key, "text": self.chance.randbytes(characters // 2).hex()} for key in KEYS]
        part = self.folder / "in" / f".{self.files}"
        part.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(part, (self.files, self.files))
        part.rename(self.folder / "in" / f"{self.files:05}.json")
        self.events += rows

    def start(self, epochs: int, task_faults: Sequence[Fault] = ()) -> DriverProcess:
        self.drivers += 1
        plan = DriverPlan(
            pipeline=Path(__file__).with_name("s3_state_application.py"),
            directory=self.folder / "run",
            parameters={"folder": str(self.folder / "in"), "output": str(self.folder / "out")},
            configuration=CONFIGURATION,
            epochs=epochs,
            task_faults=task_faults,
            variables={store_driver.STORE: self.store.url},
            program=store_driver.__name__,
        )
        return DriverProcess(plan, self.folder / f"driver-{self.drivers}.log")

    @property
    def history(self) -> History:
        url = f"sqlite:///{self.folder / 'run' / 'catalog.sqlite'}"
        return History(self.store, standalone_epochs(url, "texts"), {})

    def problems(self) -> list[str]:
        """Violations, after all files have been processed."""
        history = self.history
        found = [*unfinished_epochs(history), *broken_lineage(history), *orphans(history)]
        expected = Counter(row["k"] for row in self.events)
        longest = {key: max(row["text"] for row in self.events if row["k"] == key) for key in KEYS}
        state = SnapshotReader(self.store, history.snapshots[-1][0]).read("totals").to_pylist()
        if {row["k"]: (row["events"], row["longest"]) for row in state} != {
            key: (expected[key], longest[key]) for key in KEYS
        }:
            found.append(f"the state is not that of the input: {[(row['k'], row['events']) for row in state]}")
        return found


@pytest.fixture
def application(s3_proxy: S3Proxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Application:
    in_environment(monkeypatch, s3_proxy.environment())
    return Application(SnapshotStore(f"s3://{bucket}/store"), tmp_path)


def listed_epochs(proxy: S3Proxy) -> Counter[int]:
    """How often the folder of an epoch's deltas was listed."""
    prefixes = [request.query.get("prefix", "") for request in proxy.requests() if request.kind == "LIST"]
    return Counter(int(prefix.rstrip("/").rpartition("/")[2]) for prefix in prefixes if "/epochs/" in prefix)


def test_only_an_epoch_with_a_repeated_task_is_swept(application: Application, s3_proxy: S3Proxy) -> None:
    """The task dies after it has written a large delta, which nothing names."""
    large = 2
    for number in range(1, 7):
        application.feed(characters=6 * TASK_BYTES if number in (large, large + 1) else 10)
    fault = Fault("T3.delta-written", "kill", epoch=large, once=str(application.folder / "fired"))
    driver = application.start(epochs=6, task_faults=[fault])
    assert driver.wait() == 0, driver.log_end()
    assert (application.folder / "fired").exists()
    written = [
        request.path.partition("/store/")[2]
        for request in s3_proxy.requests()
        if request.kind == "PUT" and "/epochs/" in request.path
    ]
    history = application.history
    assert [record.state for record in history.decided] == ["committed"] * 6
    named = {delta.file.path for _, manifest in history.snapshots for delta in manifest.deltas}
    [lost] = [path for path in written if path not in named]
    place = layout.place_of(lost)
    assert place is not None and place.epoch == large
    assert "1 files of lost tasks removed" in driver.log_end(1_000_000)
    assert listed_epochs(s3_proxy) == {large: 2}  # again two epochs later, since a late task may have written
    assert application.problems() == []


def test_pack_of_a_dead_driver_that_lands_late_has_no_effect(application: Application, s3_proxy: S3Proxy) -> None:
    """It lands while the next driver continues, whose epochs cover the same input."""
    for _ in range(6):
        application.feed()
    s3_proxy.hold(times=1, kinds=["PUT"], containing="/manifests/0000000002-")
    dead = application.start(epochs=6)
    s3_proxy.wait_for_held(1, seconds=120)
    dead.kill()
    successor = application.start(epochs=2)
    assert successor.wait() == 0, successor.log_end()
    [late] = s3_proxy.release()
    assert late.server_status == 200
    path = late.path.partition("/store/")[2]
    assert path in application.store.list("")
    last = application.start(epochs=3)
    assert last.wait() == 0, last.log_end()
    history = application.history
    assert path not in {reference.path for reference, _ in history.snapshots}
    assert path not in application.store.list("")  # R4 of the last driver has removed it
    assert application.problems() == []
