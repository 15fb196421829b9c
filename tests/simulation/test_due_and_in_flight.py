"""Epochs without input, for due times and for records in flight, with real tasks, state and recovery."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal import KeyedProcess, ValueState
from epochal.backends.heap import HeapBackend
from epochal.connectors import files
from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.conditions import microseconds
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.contracts.source import Slice, SliceLimits
from epochal.engine.clock import EpochClock
from epochal.engine.job import Participants
from epochal.errors import Fenced
from epochal.snapshots.in_flight import InternalSource
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.lives import failing_at
from tests.kit.local_engine.attempt import attempt
from tests.kit.local_engine.engine import LocalOperator, LocalPipeline, local_process
from tests.kit.reminders import KEY, OUTPUT, REMINDERS, ROWS, RemindersWork

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class CountDown(KeyedProcess):
    """Outputs each row with ``n`` reduced by 1 until it is 0."""

    count = ValueState("rows bigint")
    output = "name string, n bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        self.count.set((self.count.get() or 0) + len(rows))
        return [(row.name, row.n - 1) for row in rows if row.n > 0]


class Head(InternalSource):
    """Reads one file of the parent's loop per epoch; the slice lists the remaining files."""

    kind = "test-loop"

    def schema(self, spark: Any) -> Any:
        raise NotImplementedError

    def read(self, spark: Any, slice: Slice) -> Any:
        raise NotImplementedError

    def slice_of(self, parent: Manifest | None, limits: SliceLimits) -> Slice | None:
        if parent is None:
            return None
        remaining = parent.slices["loop"].detail["remaining"] if "loop" in parent.slices else []
        paths = [*remaining, *(handle.payload["path"] for handle in parent.sinks["loop"].handles if handle.rows)]
        if not paths:
            return None
        return Slice(start={}, end={}, detail={"files": [{"path": paths[0]}], "remaining": paths[1:]})


class Tail(SinkBackend):
    """Writes a file of JSON lines for each task."""

    kind, target = "test-loop", "test:loop"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self, schema: pa.Schema) -> None:
        assert schema.names == ROWS.names

    def start(self, task: TaskScope) -> SinkTransaction:
        return TailFile(task, self.folder / f"{task.epoch.epoch}-{task.subtask}.json")

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Nothing to commit: the manifest names the file."""

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """The next run of the task overwrites the file."""

    def recover(self, epoch: EpochScope) -> None:
        """The folder has no other writers."""

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return 0


@dataclass
class TailFile(SinkTransaction):
    task: TaskScope
    path: Path
    rows: int = 0

    def write(self, batch: pa.RecordBatch) -> None:
        with self.path.open("a" if self.rows else "w") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())
        self.rows += batch.num_rows

    def pre_commit(self) -> Handle:
        payload = {"path": str(self.path)}
        return Handle(owner="loop", subtask=self.task.subtask, rows=self.rows, bytes=0, payload=payload)

    def discard(self) -> None:
        """The next run of the task overwrites the file."""


class Application:
    """Attempts of a pipeline over a folder, one after another, each at its own time."""

    def __init__(self, folder: Path, operator: LocalOperator, loops: tuple[str, ...] = ()) -> None:
        self.folder, self.operator, self.loops = folder, operator, loops
        self.catalog = MemoryCatalogState()
        self.store = SnapshotStore(str(folder / "store"))
        (folder / "in").mkdir()
        (folder / "loop").mkdir()

    def add(self, *rows: dict[str, Any]) -> None:
        number = len(list((self.folder / "in").iterdir()))
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (self.folder / "in" / f"{number}.json").write_text(text)

    def run(self, at: datetime | EpochClock, parallelism: int = 2) -> None:
        """Run one attempt until no epoch is due at that time, or at the time of a clock."""
        number = self.catalog.attempt + 1
        orders = ExecutionOrders(
            application="test",
            execution="one",
            attempt=number,
            artifact="none",
            configuration=Configuration(parallelism=parallelism, max_parallelism=8),
            store=self.store.url,
            cache_directory=str(self.folder / "cache"),
        )
        pipeline = LocalPipeline(
            {"in": ROWS}, (self.operator,), dict.fromkeys(self.loops, self.operator.name), self.loops
        )
        schema = "name string, n bigint"
        participants = Participants(
            sources={
                "in": files.source(str(self.folder / "in"), format="json", schema=schema, max_files=1).make(),
                **{name: Head() for name in self.loops},
            },
            operators={self.operator.name: HeapBackend(self.operator.name, self.store, orders.cache_directory)},
            sinks={name: Tail(self.folder / "loop") for name in self.loops},
            tables=pipeline.tables,
        )
        now = at if isinstance(at, EpochClock) else lambda: at
        attempt(orders, pipeline, participants, MemoryCatalog(self.catalog, number), now=now)

    @property
    def epochs(self) -> list[tuple[str, ...]]:
        return [record.opened_for for record in self.catalog.decided]

    @property
    def head(self) -> Manifest:
        assert self.catalog.head is not None
        return self.store.read_manifest(self.catalog.head)


@pytest.fixture
def reminders(tmp_path: Path) -> Application:
    return Application(tmp_path, LocalOperator("reminders", RemindersWork(), KEY, (REMINDERS,), OUTPUT))


def test_due_time_opens_an_epoch_without_input(reminders: Application) -> None:
    reminders.add({"name": "a", "n": 60}, {"name": "b", "n": 90}, {"name": "c", "n": 60})
    reminders.run(NOON)
    assert reminders.epochs == [("input",)]
    due = reminders.head.due["reminders"]
    assert (due.event, due.processing) == (None, microseconds(NOON + timedelta(seconds=60)))
    reminders.run(NOON + timedelta(seconds=59))
    assert reminders.epochs == [("input",)]
    # Another attempt with another parallelism reads the due times from the head's manifest.
    reminders.run(NOON + timedelta(seconds=60), parallelism=4)
    assert reminders.epochs == [("input",), ("due",)]
    assert reminders.head.due["reminders"].processing == microseconds(NOON + timedelta(seconds=90))
    reminders.add({"name": "d", "n": 1})
    reminders.run(NOON + timedelta(seconds=90))
    assert reminders.epochs[2:] == [("input", "due")]
    assert reminders.head.due["reminders"].processing == microseconds(NOON + timedelta(seconds=91))
    reminders.run(NOON + timedelta(seconds=91))
    assert reminders.epochs[3:] == [("due",)] and reminders.head.due == {}


def test_epoch_time_does_not_go_backwards_with_the_clock(reminders: Application) -> None:
    reminders.add({"name": "a", "n": 60})
    reminders.run(NOON)
    reminders.add({"name": "b", "n": 60})
    reminders.run(NOON - timedelta(hours=1))
    assert reminders.head.clock.epoch_time == microseconds(NOON)
    assert reminders.head.due["reminders"].processing == microseconds(NOON + timedelta(seconds=60))


def test_timer_fires_on_time_after_a_temporary_clock_jump(reminders: Application) -> None:
    seconds, wall_error = 0, 0
    clock = EpochClock(
        lambda: 60.0,
        wall=lambda: microseconds(NOON) + (seconds + wall_error) * 1_000_000,
        elapsed=lambda: seconds * 1_000_000,
    )
    reminders.add({"name": "a", "n": 60})
    reminders.run(clock)
    seconds, wall_error = 5, 73 * 365 * 86_400
    reminders.add({"name": "b", "n": 60})
    reminders.run(clock)
    assert reminders.head.clock.epoch_time == microseconds(NOON) + 5_000_000
    assert reminders.head.due["reminders"].processing == microseconds(NOON) + 60_000_000
    seconds, wall_error = 59, 0
    reminders.run(clock)
    assert reminders.epochs == [("input",), ("input",)]
    seconds = 65
    reminders.run(clock)
    assert reminders.epochs == [("input",), ("input",), ("due",)] and reminders.head.due == {}
    assert reminders.head.clock.epoch_time == microseconds(NOON) + 65_000_000


@pytest.mark.parametrize("point", ["E1.slices-chosen", "E1.opened", "E2.ran", "E4.manifest-written", "E4.prepared"])
def test_due_time_survives_the_death_of_the_driver(reminders: Application, point: str) -> None:
    reminders.add({"name": "a", "n": 60})
    reminders.run(NOON)
    with failing_at(point, Fenced("the driver has died")), pytest.raises(Fenced):
        reminders.run(NOON + timedelta(seconds=60))
    reminders.run(NOON + timedelta(seconds=61))
    assert reminders.epochs == [("input",), ("due",)] and reminders.head.due == {}
    was_decided = point == "E4.prepared"
    assert reminders.head.clock.epoch_time == microseconds(NOON + timedelta(seconds=60 if was_decided else 61))


@pytest.fixture
def loop(tmp_path: Path) -> Application:
    return Application(tmp_path, local_process("countdown", CountDown, KEY, ROWS, ROWS), loops=("loop",))


def test_records_in_flight_open_epochs_until_the_loop_is_empty(loop: Application) -> None:
    loop.add({"name": "a", "n": 2})
    loop.run(NOON)
    assert loop.epochs == [("input",), ("in_flight",), ("in_flight",)]
    assert [handle.rows for handle in loop.head.sinks["loop"].handles] == [0, 0]


@pytest.mark.parametrize(
    "point", ["E1.before", "E1.opened", "E2.ran", "E4.manifest-written", "E4.prepared", "E5.sink-committed"]
)
def test_records_in_flight_survive_the_death_of_the_driver(loop: Application, point: str) -> None:
    loop.add({"name": "a", "n": 3}, {"name": "b", "n": 1})
    with failing_at(point, Fenced("the driver has died")), pytest.raises(Fenced):
        loop.run(NOON)
    loop.run(NOON, parallelism=4)
    heads = [loop.store.read_manifest(record.manifest) for record in loop.catalog.decided if record.manifest]
    rows = sum(handle.rows for head in heads for handle in head.sinks["loop"].handles)
    assert rows == 4  # a with 2, 1 and 0; b with 0
    assert loop.epochs[0] == ("input",) and set(loop.epochs[1:]) == {("in_flight",)}
