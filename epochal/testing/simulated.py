"""What the simulation is made of: a world that outlives crashes, and a source, state and sink that live in it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa
from fsspec.core import url_to_fs

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.contracts.state import StateBackend, StateTransaction
from epochal.engine.answers import Answers, SinkAnswer
from epochal.engine.job import EpochPlan, EpochRunner
from epochal.errors import EpochAborted, Fenced, FileMissing, SinkError
from epochal.snapshots import layout
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateKind, StateTable
from epochal.testing.memory_catalog import MemoryCatalogState

PARALLELISM = 2
OPERATOR, SINK, SOURCE = "totals", "out", "numbers"
KEYS = 5
TABLE = StateTable(
    id=OPERATOR,
    operator=OPERATOR,
    kind=StateKind.AGGREGATE,
    key=(Column(name="key", type="int"),),
    value=(Column(name="total", type="bigint"),),
)
Totals = dict[int, int]
Rows = list[tuple[int, int]]


class Crash(BaseException):
    """The simulated process is gone. Not an ``Exception``: nobody may handle it."""


@dataclass
class Target:
    """The outside system that the sink writes to."""

    staged: dict[str, tuple[EpochKey, Rows]] = field(default_factory=dict)
    visible: dict[int, Rows] = field(default_factory=dict)
    attempt: int = 0


@dataclass
class World:
    """All that outlives a process."""

    store: SnapshotStore
    log: Rows
    catalog: MemoryCatalogState = field(default_factory=MemoryCatalogState)
    target: Target = field(default_factory=Target)

    @classmethod
    def new(cls, chance: random.Random, events: int) -> World:
        log = [(chance.randrange(KEYS), chance.randrange(100)) for _ in range(events)]
        return cls(SnapshotStore(f"memory://simulation-{uuid4().hex}"), log)

    def close(self) -> None:
        """Forget the store's files: all worlds of a process share one memory."""
        filesystem, root = url_to_fs(self.store.url)
        if filesystem.exists(root):
            filesystem.rm(root, recursive=True)


class SimulatedSource(Source):
    """A log with offsets; slices of a few events."""

    kind = "simulated"

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world, self._chance, self._position = world, chance, 0

    @property
    def ended(self) -> bool:
        return self._position >= len(self._world.log)

    def limit_to_available(self) -> None:
        """All of it is."""

    def schema(self, spark: Any) -> Any:
        raise NotImplementedError

    def read(self, spark: Any, slice: Slice) -> Any:
        raise NotImplementedError

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._position = checkpoint["position"] if checkpoint else 0
        for slice in slices:
            if slice.start["position"] != self._position:
                raise AssertionError(f"slices do not follow on each other: {slice} after {self._position}")
            self._position = slice.end["position"]

    def checkpoint(self) -> dict[str, Any]:
        return {"position": self._position}

    def plan(self, limits: SliceLimits) -> Slice | None:
        end = min(len(self._world.log), self._position + self._chance.randint(1, 3))
        if end == self._position:
            return None
        return Slice(start={"position": self._position}, end={"position": end}, rows=end - self._position)

    def accept(self, slice: Slice) -> None:
        self._position = slice.end["position"]

    def acknowledge(self, slice: Slice) -> None:
        pass


class SimulatedState(StateBackend):
    """Deltas as JSON files in the store; the task itself is :class:`SimulatedRunner`'s."""

    kind = "simulated-state"

    def __init__(self, world: World) -> None:
        self._store = world.store

    def start(self, task: TaskScope) -> StateTransaction:
        raise NotImplementedError

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        raise AssertionError("state has nothing to commit: the chain is published by the manifest")

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        for handle in handles:
            for delta in self.deltas(handle):
                self._store.delete(delta.file.path)

    def recover(self, epoch: EpochScope) -> None:
        pass

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        kept = {delta.file.path for handle in keep for delta in self.deltas(handle)}
        lost = [path for path in self._store.list(layout.deltas(epoch.key)) if path not in kept]
        for path in lost:
            self._store.delete(path)
        return len(lost)

    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        return tuple(DeltaFile.model_validate(item) for item in handle.payload["deltas"])


class SimulatedSink(SinkBackend):
    """Two-phase over :class:`Target`: staged rows by unique id, then visible by epoch."""

    kind = "simulated-sink"
    target = "simulated:target"

    def __init__(self, world: World, chance: random.Random) -> None:
        self._target, self._chance = world.target, chance

    def check(self, schema: pa.Schema) -> None:
        pass

    def start(self, task: TaskScope) -> SinkTransaction:
        raise NotImplementedError

    def stage(self, epoch: EpochScope, subtask: int, rows: Rows) -> Handle:
        unique = uuid4().hex
        self._target.staged[unique] = (epoch.key, rows)
        return Handle(owner=SINK, subtask=subtask, rows=len(rows), bytes=0, payload={"id": unique})

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        if epoch.attempt < self._target.attempt:
            raise Fenced()
        if self._chance.random() < 0.1:
            raise SinkError("the target is down for a moment")
        if epoch.epoch not in self._target.visible:
            if missing := [handle for handle in handles if handle.payload["id"] not in self._target.staged]:
                raise FileMissing(f"epoch {epoch.key} is decided, but its staged output is gone: {missing}")
            rows = [row for handle in handles for row in self._target.staged[handle.payload["id"]][1]]
            self._target.visible[epoch.epoch] = rows
        for handle in handles:
            self._target.staged.pop(handle.payload["id"], None)
        if self._chance.random() < 0.1:
            raise SinkError("the answer was lost")

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        for handle in handles:
            self._target.staged.pop(handle.payload["id"], None)

    def recover(self, epoch: EpochScope) -> None:
        self._target.attempt = max(self._target.attempt, epoch.attempt)

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        kept = {handle.payload["id"] for handle in keep}
        lost = [unique for unique, (key, _) in self._target.staged.items() if key == epoch.key and unique not in kept]
        for unique in lost:
            del self._target.staged[unique]
        return len(lost)


class SimulatedRunner(EpochRunner):
    """E2 without Spark: every subtask may fail and be run again, or run twice; only one of its handles comes back."""

    def __init__(self, world: World, sink: SimulatedSink, chance: random.Random) -> None:
        self._world, self._sink, self._chance = world, sink, chance

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        slice = plan.slices[SOURCE]
        events = self._world.log[slice.start["position"] : slice.end["position"]]
        state = read_totals(self._world.store, [link.deltas for link in plan.chains[TABLE.id].links])
        operators, sinks = [], []
        for subtask in range(PARALLELISM):
            for _ in range(self._chance.choice([1, 1, 1, 2])):
                handle, output = self._subtask(plan, subtask, events, state)
                sink = self._sink.stage(plan.scope, subtask, output)
            operators.append(handle)
            sinks.append(SinkAnswer(subtask, sink))
            if self._chance.random() < 0.03:
                raise EpochAborted("a task failed too often")
        if self._chance.random() < 0.02:
            operators.pop()
        return Answers({OPERATOR: operators}, sinks, (), partitions=PARALLELISM, rows_in=len(events))

    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        return tuple(DeltaFile.model_validate(item) for item in handle.payload["deltas"])

    def _subtask(self, plan: EpochPlan, subtask: int, events: Rows, state: Totals) -> tuple[Handle, Rows]:
        changed: Totals = {}
        for key, value in events:
            if key % PARALLELISM == subtask:
                changed[key] = changed.get(key, state.get(key, 0)) + value
        deltas = []
        if changed:
            path = layout.delta(plan.scope.key, TABLE.id, subtask)
            file = self._world.store.write_file(path, json.dumps(sorted(changed.items())).encode(), len(changed))
            deltas.append(DeltaFile(table=TABLE.id, subtask=subtask, parallelism=PARALLELISM, file=file))
        payload = {"deltas": [delta.model_dump() for delta in deltas]}
        return Handle(owner=OPERATOR, subtask=subtask, rows=len(changed), bytes=0, payload=payload), sorted(
            changed.items()
        )


def read_totals(store: SnapshotStore, links: Sequence[Sequence[DeltaFile]]) -> Totals:
    """State from its deltas, oldest first."""
    totals: Totals = {}
    for deltas in links:
        for delta in deltas:
            totals |= {int(key): value for key, value in json.loads(store.read_file(delta.file, "the simulation"))}
    return totals
