"""Parts of the simulation: a world that survives crashes, with a source, a loop, state and a sink.

The only operator sums values by key. Some values return to it through the loop, halved. Some set a reminder for their
key; when it is due, an output row is produced without input. :func:`follows` computes the effects of an epoch.

The source's log is up to four seconds out of order, and the delay of the watermark is one second. Some events are
therefore late: they change no state and go to the late side. Some others set an alarm for their key; the watermark
fires it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal
from uuid import uuid4

import pyarrow as pa
from fsspec.core import url_to_fs

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.catalog import Failure, QueryCommand
from epochal.contracts.conditions import BEGINNING
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.contracts.source import Slice, SliceLimits
from epochal.contracts.state import StateBackend, StateTransaction
from epochal.declarations.event_time import EventTime
from epochal.engine.event_time import TimePlan
from epochal.errors import Fenced, FileMissing, SinkError
from epochal.pipeline.event_time import Partitions
from epochal.snapshots import layout
from epochal.snapshots.in_flight import InternalSource
from epochal.snapshots.manifest import DeltaFile, Manifest
from epochal.snapshots.packs import is_apart
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.watermarks import Declaration, TimedOperator, TimeGraph
from epochal.testing.memory_catalog import MemoryCatalogState
from tests.kit.local_engine.sources import LogSource, NotForSpark

SECOND: Final = 1_000_000
TIME: Final = "time"
DELAY: Final = SECOND
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
REMINDERS = StateTable(
    id=f"{OPERATOR}.reminders",
    operator=OPERATOR,
    kind=StateKind.VALUE,
    key=(Column(name="key", type="int"),),
    value=(Column(name="at", type="timestamp"),),
)
ALARMS = StateTable(
    id=f"{OPERATOR}.alarms",
    operator=OPERATOR,
    kind=StateKind.VALUE,
    key=(Column(name="key", type="int"),),
    value=(Column(name="at", type="timestamp"),),
)
LOOP, LOOP_RECORDS = "halves", 2
"""The loop (the name of its head and of its tail), and the maximum number of its records per epoch."""
REMINDED = -1
"""The value of an output row for a due reminder, instead of a total."""
Totals = dict[int, int]
Reminders = dict[int, int]
"""The epoch time for which each key waits."""
Rows = list[tuple[int, int]]


@dataclass(frozen=True)
class Follows:
    """The effects of an epoch: changed state values, output, records for the loop, and the number of dropped
    reminders."""

    totals: Totals
    reminders: dict[int, int | None]
    output: Rows
    in_flight: Rows
    dropped: int


def follows(events: Rows, totals: Totals, reminders: Reminders, epoch_time: int, draining: bool = False) -> Follows:
    """Compute the effects of an epoch with these events (from outside and from the loop) on this state.

    ``draining``: no epoch follows for which a reminder could wait.
    """
    changed: Totals = {}
    updated: dict[int, int | None] = {key: None for key, at in reminders.items() if at <= epoch_time}
    output = [(key, REMINDED) for key in updated]
    for key, value in events:
        changed[key] = changed.get(key, totals.get(key, 0)) + value
        if value % 7 == 3:
            updated[key] = epoch_time + (value % 5 + 1) * SECOND
    in_flight = [(key, value // 2) for key, value in events if value > 0 and value % 5 == 0]
    waiting = {key for key, at in {**reminders, **updated}.items() if at is not None} if draining else set()
    updated |= dict.fromkeys(waiting)
    return Follows(changed, updated, sorted([*changed.items(), *output]), in_flight, len(waiting))


class Crash(BaseException):
    """The simulated process has died. Not an ``Exception``, so that no handler catches it."""


@dataclass
class Target:
    """The external system that the sink writes to."""

    staged: dict[str, tuple[EpochKey, Rows]] = field(default_factory=dict)
    visible: dict[int, Rows] = field(default_factory=dict)
    attempt: int = 0


@dataclass
class World:
    """Everything that survives the death of a process."""

    store: SnapshotStore
    log: Rows
    catalog: MemoryCatalogState = field(default_factory=MemoryCatalogState)
    target: Target = field(default_factory=Target)
    clock: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    commit: Literal["asynchronous", "synchronous"] = "asynchronous"
    bounded: bool = False
    """The log is the whole input."""
    commands: list[QueryCommand] = field(default_factory=list)
    """All commands on standing queries so far."""
    answered: dict[int, tuple[int, Failure | None]] = field(default_factory=dict)
    """The epoch that carried out each answered command, by number, and the refusal, if any."""

    @classmethod
    def new(cls, chance: random.Random, events: int) -> World:
        log = [(chance.randrange(KEYS), chance.randrange(100)) for _ in range(events)]
        world = cls(SnapshotStore(f"memory://simulation-{uuid4().hex}"), log)
        world.commit = "synchronous" if chance.random() < 0.2 else "asynchronous"
        world.bounded = chance.random() < 0.5
        return world

    def close(self) -> None:
        """Delete the store's files: all worlds of a process share one in-memory file system."""
        filesystem, root = url_to_fs(self.store.url)
        if filesystem.exists(root):
            filesystem.rm(root, recursive=True)


class SimulatedSource(LogSource):
    """A log with offsets; each slice has a few events."""

    kind = "simulated"

    def __init__(self, world: World, chance: random.Random) -> None:
        super().__init__()
        self._world, self._chance = world, chance

    @property
    def bounded(self) -> bool:
        return self._world.bounded

    @property
    def length(self) -> int:
        return len(self._world.log)

    def plan(self, limits: SliceLimits) -> Slice | None:
        end = min(self.length, self._position + self._chance.randint(1, 3))
        return None if end == self._position else self.up_to(end, end - self._position)


class SimulatedLoop(NotForSpark, InternalSource):
    """The head of the loop. Its slice has a few of the tail's records and of the records left by earlier slices."""

    kind = "simulated-loop"

    def slice_of(self, parent: Manifest | None, limits: SliceLimits) -> Slice | None:
        records = [] if parent is None else in_flight_at(parent)
        if not records:
            return None
        taken, rest = records[:LOOP_RECORDS], records[LOOP_RECORDS:]
        return Slice(start={}, end={}, detail={"records": taken, "rest": rest}, rows=len(taken))


def in_flight_at(manifest: Manifest) -> list[tuple[int, int]]:
    """Return the loop's records in the snapshot, in order."""
    rest = manifest.slices[LOOP].detail["rest"] if LOOP in manifest.slices else []
    return [tuple(record) for record in rest] + [
        tuple(record) for handle in manifest.sinks[LOOP].handles for record in handle.payload["records"]
    ]


class SimulatedTail(SinkBackend):
    """The tail of the loop. Its records are in its handles, so commit and removal have no effect."""

    kind = "simulated-tail"
    target = "simulated:loop"

    def check(self, schema: pa.Schema) -> None:
        pass

    def start(self, task: TaskScope) -> SinkTransaction:
        raise NotImplementedError

    def stage(self, subtask: int, rows: Rows) -> Handle:
        return Handle(owner=LOOP, subtask=subtask, rows=len(rows), bytes=0, payload={"records": rows})

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        pass

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        pass

    def recover(self, epoch: EpochScope) -> None:
        pass

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return 0


class SimulatedState(StateBackend):
    """State with deltas as JSON files in the store; :class:`SimulatedRunner` runs the task."""

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
                if is_apart(delta.file, handle):
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
    """A two-phase sink over :class:`Target`: rows are staged by unique id, then visible by epoch."""

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
            raise SinkError("the target is temporarily down")
        if epoch.epoch not in self._target.visible:
            if missing := [handle for handle in handles if handle.payload["id"] not in self._target.staged]:
                raise FileMissing(f"epoch {epoch.key} is decided, but its staged output is missing: {missing}")
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


Alarms = dict[int, int]
"""The event time for which each key waits."""
ALARMED, LATE = -2, -3
"""Values of an output row instead of a total: for a due alarm, and for a late event."""


def time_plan(source: str, operator: str) -> TimePlan:
    """Return the time plan of one operator over one source without partitions."""
    graph = TimeGraph((Declaration(TIME, DELAY), TimedOperator(operator, (TIME,))))
    partitions = Partitions({TIME: frozenset({source})}, {}, frozenset())
    return TimePlan(graph, partitions, {TIME: EventTime("happened", DELAY).details()})


@dataclass(frozen=True)
class FromOutside:
    """The events of a slice: ``on_time`` and ``late`` events, the alarms that they set, and the latest time."""

    on_time: Rows
    late: Rows
    alarms: Alarms
    latest: int | None


def from_outside(slice: Slice | None, log: Rows, late: int) -> FromOutside:
    """Split the events of a slice. ``late``: the operator's watermark; earlier events are late."""
    positions = () if slice is None else range(slice.start["position"], slice.end["position"])
    times = {position: _happened(position, log[position][1]) for position in positions}
    on_time = {position: log[position] for position, time in times.items() if time >= late}
    alarms: Alarms = {}
    for position, (key, value) in on_time.items():
        if value % 4 == 1:
            alarms[key] = max(alarms.get(key, BEGINNING), times[position] + value % 5 * SECOND)
    rows_late = [log[position] for position, time in times.items() if time < late]
    return FromOutside(list(on_time.values()), rows_late, alarms, max(times.values(), default=None))


def alarms_after(waiting: Alarms, updated: Alarms, fire: int) -> tuple[dict[int, int | None], Rows]:
    """Return the changes to waiting alarms (``None``: fired) and the output of the fired alarms."""
    fired = sorted(key for key, at in {**waiting, **updated}.items() if at <= fire)
    return {**updated, **dict.fromkeys(fired)}, [(key, ALARMED) for key in fired]


def left(waiting: Alarms, changed: Mapping[int, int | None]) -> Alarms:
    """Return the alarms that wait after an epoch's changes."""
    return {key: at for key, at in {**waiting, **changed}.items() if at is not None}


def _happened(position: int, value: int) -> int:
    return (position - value % 3 * 2) * SECOND
