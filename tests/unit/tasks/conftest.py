"""Run tasks without Spark: simulated marks, shuffle and sort, real backends, a real store."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from epochal.backends.heap import HeapBackend
from epochal.backends.lmdb import LmdbBackend
from epochal.contracts.conditions import BEGINNING, NO_WATERMARKS, Clock, Due, EpochConditions, Watermarks, microseconds
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.state import StateBackend
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.delta import read_delta
from epochal.snapshots.packs import Pack, carried_by
from epochal.snapshots.store import SnapshotStore
from epochal.state.expiry import StateClock
from epochal.state.keygroups import key_groups
from epochal.state.table import Column, StateTable
from epochal.tasks.operator import OperatorTask, Work
from epochal.tasks.steps import TaskAnswer

BACKENDS = {"heap": HeapBackend, "lmdb": LmdbBackend}

Row = Mapping[str, Any]


@dataclass
class Operator:
    """One operator over several epochs, run as planner and coordinator do."""

    work: Work
    key: tuple[Column, ...]
    row: pa.Schema
    output: pa.Schema
    tables: tuple[StateTable, ...]
    store: SnapshotStore
    backend: StateBackend
    name: str = "operator"
    parallelism: int = 4
    max_parallelism: int = 16
    order_by: tuple[str, ...] = ()
    batch_rows: int = 3
    subtasks_of_task: int = 2
    epoch: int = 0
    parent: EpochKey | None = None
    links: dict[str, list[Link]] = field(default_factory=dict)
    watermarks: Watermarks = NO_WATERMARKS
    """The watermarks of the next epoch."""
    epoch_time: int | None = None
    """The epoch time of the next epoch, in microseconds; ``None``: the clock's time."""
    clock: StateClock | None = None
    """The clock of the last epoch, by which its state has expired."""
    dues: list[Due] = field(default_factory=list)
    """The answers of the subtasks in the last epoch."""
    draining: bool = False
    """True if the next epoch is the last."""
    dropped_timers: int = 0
    """The conditions of the last epoch."""

    @property
    def scope(self) -> EpochScope:
        return EpochScope("application", EpochKey("main", self.epoch + 1), 1, self.parent)

    def at(self, fire: int, epoch_time: int) -> None:
        """Set the clocks of the next epoch, in microseconds."""
        late = BEGINNING if self.clock is None else self.clock.event
        self.watermarks, self.epoch_time = Watermarks(late=late, fire=fire), epoch_time

    @property
    def now(self) -> int:
        return microseconds(datetime.now(UTC)) if self.epoch_time is None else self.epoch_time

    def task(self) -> OperatorTask:
        chains = {table.id: Chain(None, (), tuple(self.links.get(table.id, ())), self.clock) for table in self.tables}
        places = {self.name: self.watermarks}
        task = OperatorTask(
            operator=self.name,
            work=self.work,
            backend=self.backend,
            epoch=self.scope,
            conditions=EpochConditions(clock=Clock(epoch_time=self.now, places=places)).opened(
                *(["drain"] if self.draining else [])
            ),
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            tables=self.tables,
            chains=chains,
            key=self.key,
            output=self.output,
        )
        assert isinstance(task, OperatorTask)
        return task

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """Rows and marks with their control columns, sorted as ``process`` requires."""
        data = pa.Table.from_pylist([dict(row) for row in rows], schema=self.row)
        key = pa.schema([column.to_arrow() for column in self.key])
        groups = key_groups(data.select(key.names).cast(key), key, self.max_parallelism)
        real = {"_mark": pa.nulls(len(rows), pa.int32()), "_subtask": pa.array(groups % self.parallelism, pa.int32())}
        columns = {**real, "_kg": pa.array(groups, pa.int32()), **{name: data.column(name) for name in self.row.names}}
        numbers = pa.array(range(self.parallelism), pa.int32())
        marks = {"_mark": numbers, "_subtask": numbers, "_kg": pa.nulls(self.parallelism, pa.int32())}
        nulls = {each.name: pa.nulls(self.parallelism, each.type) for each in self.row}
        both = pa.concat_tables([pa.table(columns), pa.table({**marks, **nulls})])
        order = ["_subtask", "_mark", "_kg", *key.names, *self.order_by]
        return both.sort_by([(name, "ascending") for name in order])

    def batches(self, rows: Sequence[Row]) -> list[list[pa.RecordBatch]]:
        """The batches of each Spark task."""
        table = self.table(rows)
        tasks = []
        for first in range(0, self.parallelism, self.subtasks_of_task):
            mine = [first <= subtask < first + self.subtasks_of_task for subtask in table["_subtask"].to_pylist()]
            tasks.append(table.filter(pa.array(mine)).to_batches(max_chunksize=self.batch_rows))
        return tasks

    def attempt(self, rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[Handle]]:
        """E2: run every task once, on pickled copies as Spark does, without a commit."""
        outputs: list[dict[str, Any]] = []
        handles: list[Handle] = []
        for batches in self.batches(rows):
            task = pickle.loads(cloudpickle.dumps(self.task()))  # type: ignore[no-untyped-call]
            for batch in task(iter(batches)):
                assert batch.schema == task.schema
                for row in batch.to_pylist():
                    handle, subtask = row.pop("_handle"), row.pop("_subtask")
                    if handle is None:
                        outputs.append(row)
                    else:
                        handles.append(TaskAnswer.decode(handle).handle)
                        assert handles[-1].subtask == subtask
        return outputs, handles

    def commit(self, handles: Sequence[Handle]) -> None:
        """E4: publish a manifest with exactly these handles, and the pack of their files."""
        assert sorted(handle.subtask for handle in handles) == list(range(self.parallelism))
        self.epoch += 1
        self.clock = StateClock(self.watermarks.fire, self.now)
        self.dues = [handle.due for handle in handles if handle.due is not None]
        self.dropped_timers = sum(handle.dropped_timers for handle in handles)
        self.parent = EpochKey("main", self.epoch)
        files = carried_by(handles)
        if files:
            pack = Pack.of(self.parent, 1, files)
            self.store.write(pack.path, pack.beginning)
            handles = [pack.placed(handle) for handle in handles]
        deltas = [delta for handle in handles for delta in self.backend.deltas(handle)]
        for table in self.tables:
            mine = tuple(delta for delta in deltas if delta.table == table.id)
            self.links.setdefault(table.id, []).append(Link(self.parent, mine))

    def run(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """One epoch: E2 and E4."""
        outputs, handles = self.attempt(rows)
        self.commit(handles)
        return outputs

    def state(self, table: StateTable) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The state of the published deltas, read without a backend: full key -> values."""
        rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for link in self.links.get(table.id, ()):
            for delta in link.deltas:
                for change in read_delta(self.store, table, delta).to_pylist():
                    key = tuple(change[name] for name in table.key_schema.names)
                    if change["_op"] == "delete":
                        del rows[key]  # deleting a missing key would be a defect
                    else:
                        rows[key] = tuple(change[name] for name in table.value_schema.names)
        return rows


MakeOperator = Callable[..., Operator]


@pytest.fixture
def make_operator(tmp_path: Path) -> MakeOperator:
    """Creates an :class:`Operator` with its own store and backend (by default ``heap``)."""
    count = 0

    def make(
        work: Work, key: Sequence[Column], row: pa.Schema, output: pa.Schema, kind: str = "heap", **more: Any
    ) -> Operator:
        nonlocal count
        count += 1
        store = SnapshotStore(str(tmp_path / f"store-{count}"))
        backend = BACKENDS[kind]("operator", store, str(tmp_path / f"cache-{count}"))
        more = {"tables": (), "backend": backend, **more}
        return Operator(work, tuple(key), row, output, store=store, **more)

    return make
