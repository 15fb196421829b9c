"""The real coordinator, commit queue and recovery over a simulated cluster that crashes at every numbered step.

One :class:`World` is everything that survives a crash: the store, the catalog, the sink's target and the source's log.
:func:`run` drives attempts over it; a seed decides at which fault points the process dies, is stopped while a
successor takes over (and then goes on as a zombie), or loses the catalog's answer.
What is simulated is Spark and the network; the
protocol is the real one. :func:`check` compares the world with a sequential oracle.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa
from fsspec.core import url_to_fs

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.catalog import Failure, ManifestReference
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.contracts.state import StateBackend, StateTransaction
from epochal.engine.answers import Answers, SinkAnswer
from epochal.engine.bases import PendingBases
from epochal.engine.commits import CommitQueue
from epochal.engine.coordinator import Coordinator
from epochal.engine.job import EpochPlan, EpochRunner, Participants
from epochal.engine.recovery import Recovery
from epochal.engine.retention import Retention
from epochal.engine.settings import Configuration, ExecutionOrders
from epochal.errors import EpochAborted, Fenced, FileMissing, OutcomeUnknown, SinkError
from epochal.faults import FaultPoint, injected
from epochal.snapshots import layout
from epochal.snapshots.lineage import history
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateKind, StateTable
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState

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
    bounded = True

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world, self._chance, self._position = world, chance, 0

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


@dataclass
class Plan:
    """What a seed lets happen: the chance of each fault at each point, and how many there are at most."""

    chance: random.Random
    faults_left: int
    fired: Counter[str] = field(default_factory=Counter)


def run(seed: int, events: int = 12, faults: int = 4) -> tuple[World, Plan]:
    """Run one seed to the end of its log, through crashes, zombies and lost answers."""
    chance = random.Random(seed)
    world = World.new(chance, events)
    plan = Plan(chance, chance.randint(0, faults))
    while not _attempt(world, plan):
        pass
    return world, plan


def _attempt(world: World, plan: Plan) -> bool:
    """One attempt; True when it reached the end of the log with everything committed."""
    with injected(lambda point, epoch: _fault(world, plan, point)):
        try:
            return _epochs(world, plan)
        except (Crash, Fenced):
            return False


def _fault(world: World, plan: Plan, point: FaultPoint) -> None:
    if plan.faults_left <= 0 or plan.chance.random() > 0.02:
        return
    plan.faults_left -= 1
    plan.fired[point.name] += 1
    if plan.chance.random() < 0.6:
        raise Crash(point.name)
    # This process is stopped here; a successor runs for a while; then this one goes on as a zombie.
    budget = plan.chance.randint(1, 4)
    with injected(lambda point, epoch: _fault(world, plan, point)):
        try:
            _epochs(world, plan, budget)
        except (Crash, Fenced):
            return


def _epochs(world: World, plan: Plan, budget: int | None = None) -> bool:
    attempt = world.catalog.attempt + 1
    catalog = MemoryCatalog(world.catalog, attempt, lambda call, landed: _lose(plan, call))
    source = SimulatedSource(world, plan.chance)
    sink = SimulatedSink(world, plan.chance)
    participants = Participants({SOURCE: source}, {OPERATOR: SimulatedState(world)}, {SINK: sink}, (TABLE,))
    orders = ExecutionOrders(
        application="simulated",
        execution="one",
        attempt=attempt,
        artifact="none",
        configuration=Configuration(parallelism=PARALLELISM, compact_after_epochs=10_000),
        store=world.store.url,
        cache_directory="",
    )
    commits = CommitQueue(_Insisting(catalog), participants, limit=2)
    recovery = Recovery(
        orders, _Insisting(catalog), world.store, participants, commits, lambda seconds: None, lambda waiting: None
    )
    position = recovery.run()
    bases = PendingBases()
    coordinator = Coordinator(
        orders,
        _Insisting(catalog),
        world.store,
        SimulatedRunner(world, sink, plan.chance),
        participants,
        commits,
        position,
        bases,
    )
    commits.retain = Retention(world.store, participants, position, bases, 10_000, coordinator.aborted)
    while budget is None or budget > 0:
        if plan.chance.random() < 0.5 or not commits.has_room:
            commits.step()
        if not commits.has_room:
            continue
        slices = coordinator.plan_slices(SliceLimits(None))
        if not slices:
            break
        try:
            coordinator.run_epoch(slices)
        except EpochAborted:
            continue
        if budget is not None:
            budget -= 1
    while not commits.empty:
        commits.step()
    return True


def _lose(plan: Plan, call: str) -> None:
    if plan.faults_left > 0 and plan.chance.random() < 0.01:
        plan.faults_left -= 1
        plan.fired[f"lost answer: {call}"] += 1
        raise OutcomeUnknown(f"the answer to {call} was lost")


class _Insisting(MemoryCatalog):
    """As the driver's HTTP catalog: a call whose answer was lost is made again; E4 is read back by the coordinator."""

    def __init__(self, catalog: MemoryCatalog) -> None:
        super().__init__(catalog.state, catalog.attempt, catalog.lose)

    def open_epoch(self, epoch: int, parent: EpochKey | None) -> None:
        _insist(lambda: super(_Insisting, self).open_epoch(epoch, parent))

    def commit_epoch(self, epoch: int) -> None:
        _insist(lambda: super(_Insisting, self).commit_epoch(epoch))

    def abort_epoch(self, epoch: int, failure: Failure) -> None:
        _insist(lambda: super(_Insisting, self).abort_epoch(epoch, failure))


def _insist(call: Callable[[], None]) -> None:
    while True:
        try:
            return call()
        except OutcomeUnknown:
            continue


def violations(world: World) -> list[str]:
    """What is wrong with a world whose log was run to its end; empty when every guarantee held."""
    found: list[str] = []
    state: Totals = {}
    decided = world.catalog.decided
    seen = 0
    for record in decided:
        if record.state != "committed" or record.manifest is None:
            found.append(f"epoch {record.epoch} is {record.state} at the end")
            continue
        manifest = world.store.read_manifest(record.manifest)
        slice = manifest.slices[SOURCE]
        if slice.start["position"] != seen:
            found.append(f"epoch {record.epoch} starts at {slice.start}, the one before ended at {seen}")
        seen = slice.end["position"]
        output: Totals = {}
        for key, value in world.log[slice.start["position"] : slice.end["position"]]:
            state[key] = output[key] = state.get(key, 0) + value
        if _state_at(world, record.manifest) != state:
            found.append(f"state at epoch {record.epoch} is {_state_at(world, record.manifest)}, not {state}")
        shown = Counter(world.target.visible.get(record.epoch, []))
        if shown != Counter(output.items()):
            found.append(f"the sink shows {shown} for epoch {record.epoch}, not {output}")
    if seen != len(world.log):
        found.append(f"only {seen} of {len(world.log)} events were processed")
    if extra := set(world.target.visible) - {record.epoch for record in decided}:
        found.append(f"the sink shows epochs that were never decided: {sorted(extra)}")
    return found


def leftovers(world: World) -> list[str]:
    """Files and staged rows that nothing refers to."""
    referenced: set[str] = set()
    for record in world.catalog.decided:
        if record.manifest is not None:
            referenced.add(record.manifest.path)
            referenced |= {delta.file.path for delta in world.store.read_manifest(record.manifest).deltas}
    orphans = [path for path in world.store.list(world.catalog.branch) if path not in referenced]
    return orphans + [f"staged {unique}" for unique in world.target.staged]


def _state_at(world: World, snapshot: ManifestReference) -> Totals:
    lineage = list(history(world.store, snapshot))
    return read_totals(world.store, [manifest.deltas for manifest in reversed(lineage)])
