"""The real coordinator, commit queue and recovery over a simulated cluster that crashes at every numbered step.

A :class:`World` is everything that survives a crash: the store, the catalog, the sink's target and the source's log.
:func:`run` runs attempts over it. A seed decides at which fault points the process dies, is stopped during the
takeover by a successor (and then continues as a zombie), or loses the catalog's answer. Spark and the network are
simulated; the protocol is real. :func:`violations` compares the world with a sequential oracle.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from epochal.contracts.catalog import Failure, ManifestReference
from epochal.contracts.conditions import BEGINNING, END, NO_WATERMARKS, Trigger, Watermarks
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.identity import EpochKey
from epochal.contracts.source import SliceLimits
from epochal.engine.commits import CommitQueue
from epochal.engine.compaction import Compaction
from epochal.engine.coordinator import Coordinator
from epochal.engine.job import Participants
from epochal.engine.planner import PipelinePlan
from epochal.engine.position import PendingBases
from epochal.engine.program import CurrentProgram, Program
from epochal.engine.recovery import Recovery
from epochal.engine.retention import Retention
from epochal.engine.triggers import Step, decide
from epochal.errors import EpochAborted, Fenced, OutcomeUnknown
from epochal.faults import FaultPoint, injected
from epochal.pipeline.graph import Graph
from epochal.snapshots import store as store_module
from epochal.snapshots.lineage import history
from epochal.state.watermarks import behind
from epochal.testing.harness_engine import situation_of
from epochal.testing.memory_catalog import MemoryCatalog
from epochal.testing.state_world import SMALL_CELLS
from tests.kit.simulation.pipeline import (
    ALARMS,
    DELAY,
    LATE,
    LOOP,
    LOOP_RECORDS,
    OPERATOR,
    PARALLELISM,
    REMINDERS,
    SINK,
    SOURCE,
    TABLE,
    Alarms,
    Crash,
    Reminders,
    Rows,
    SimulatedLoop,
    SimulatedSink,
    SimulatedSource,
    SimulatedState,
    SimulatedTail,
    Totals,
    World,
    alarms_after,
    follows,
    from_outside,
    in_flight_at,
    left,
    time_plan,
)
from tests.kit.simulation.queries import COMMANDS_PER_EPOCH, NODES, Commands, deliver, next_command
from tests.kit.simulation.runner import SimulatedRunner, read_totals, read_waiting


@dataclass
class Plan:
    """The faults of a seed: the chance of each fault at each point, and the maximum number of faults."""

    chance: random.Random
    faults_left: int
    query_chance: random.Random
    """A separate generator, so that queries do not change the faults of a seed."""
    fired: Counter[str] = field(default_factory=Counter)


def run(seed: int, events: int = 12, faults: int = 4) -> tuple[World, Plan]:
    """Run one seed to the end of its log, through crashes, zombies and lost answers."""
    chance = random.Random(seed)
    world = World.new(chance, events)
    plan = Plan(chance, chance.randint(0, faults), random.Random(f"queries of {seed}"))
    while not _attempt(world, plan):
        pass
    return world, plan


def _attempt(world: World, plan: Plan) -> bool:
    """Run one attempt. Returns true if it reached the end of the log with every epoch committed."""
    _forget_files()
    with injected(lambda point, epoch: _fault(world, plan, point)):
        try:
            return _epochs(world, plan)
        except (Crash, Fenced):
            return False


def _forget_files() -> None:
    """Remove the caches of manifests and packs, which a new process does not have: they would hide deleted files."""
    store_module._manifests.clear()
    store_module._packs.clear()


def _fault(world: World, plan: Plan, point: FaultPoint) -> None:
    if plan.faults_left <= 0 or plan.chance.random() > 0.02:
        return
    plan.faults_left -= 1
    plan.fired[point.name] += 1
    if plan.chance.random() < 0.6:
        raise Crash(point.name)
    # This process is stopped while a successor runs; then it continues as a zombie.
    budget = plan.chance.randint(1, 4)
    with injected(lambda point, epoch: _fault(world, plan, point)):
        try:
            _epochs(world, plan, budget)
        except (Crash, Fenced):
            return


def _epochs(world: World, plan: Plan, budget: int | None = None) -> bool:
    attempt = world.catalog.attempt + 1
    catalog = MemoryCatalog(world.catalog, attempt, lambda call, landed: _lose(plan, call))
    sink, tail = SimulatedSink(world, plan.chance), SimulatedTail()
    participants = Participants(
        {SOURCE: SimulatedSource(world, plan.chance), LOOP: SimulatedLoop()},
        {OPERATOR: SimulatedState(world)},
        {SINK: sink, LOOP: tail},
        (TABLE, REMINDERS, ALARMS),
    )
    orders = ExecutionOrders(
        application="simulated",
        execution="one",
        attempt=attempt,
        artifact="none",
        configuration=Configuration(
            parallelism=PARALLELISM, compact_after_epochs=10_000, max_uncommitted_epochs=2, commit=world.commit
        ),
        store=world.store.url,
        cache_directory="",
    )
    runner = SimulatedRunner(world, sink, tail, plan.chance)
    program = Program(
        orders,
        Graph(orders.application, NODES),
        PipelinePlan({}, {}, time_plan(SOURCE, OPERATOR)),
        participants,
        runner,
    )
    current = CurrentProgram(program)
    commits = CommitQueue(_RetryingCatalog(catalog), current)
    recovery = Recovery(
        program, _RetryingCatalog(catalog), world.store, commits, lambda seconds: None, lambda waiting: None
    )
    position = recovery.run()
    bases = PendingBases()
    behind = timedelta(seconds=plan.chance.randint(0, 10))  # clocks of machines differ
    coordinator = Coordinator(
        current, _RetryingCatalog(catalog), world.store, commits, position, bases, now=lambda: world.clock - behind
    )
    compaction = Compaction(world.store, position, bases, current, sizes=SMALL_CELLS)
    commits.retain = Retention(world.store, current, compaction, coordinator.aborted)
    while budget is None or budget > 0:
        if plan.chance.random() < 0.5 or not commits.has_room:
            commits.step()
        if not commits.has_room:
            continue
        world.clock += timedelta(seconds=plan.chance.random())
        if plan.query_chance.random() < COMMANDS_PER_EPOCH:
            world.commands.append(next_command(plan.query_chance, world.commands))
        deliver(coordinator.queries, world, position)
        commanded = coordinator.queries.waits and not coordinator.drained
        slices = coordinator.plan_slices(SliceLimits(None))
        situation = replace(situation_of(coordinator, slices), commanded=commanded)
        decision = decide(situation)
        if decision.step is not Step.OPEN and situation.until_due is not None:
            world.clock += timedelta(seconds=situation.until_due)
            continue
        if decision.step is not Step.OPEN:
            break
        try:
            coordinator.run_epoch(slices, decision.opened_for)
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


class _RetryingCatalog(MemoryCatalog):
    """Repeats a call whose answer was lost, like the driver's HTTP catalog. The coordinator reads E4 back."""

    def __init__(self, catalog: MemoryCatalog) -> None:
        super().__init__(catalog.state, catalog.attempt, catalog.lose)

    def open_epoch(self, epoch: int, parent: EpochKey | None) -> None:
        _retry(lambda: super(_RetryingCatalog, self).open_epoch(epoch, parent))

    def commit_epoch(self, epoch: int) -> None:
        _retry(lambda: super(_RetryingCatalog, self).commit_epoch(epoch))

    def abort_epoch(self, epoch: int, failure: Failure) -> None:
        _retry(lambda: super(_RetryingCatalog, self).abort_epoch(epoch, failure))


def _retry(call: Callable[[], None]) -> None:
    while True:
        try:
            return call()
        except OutcomeUnknown:
            continue


def violations(world: World) -> list[str]:
    """Return the violations of a world whose log was run to its end; empty if every guarantee held."""
    _forget_files()
    found: list[str] = []
    totals: Totals = {}
    reminders: Reminders = {}
    alarms: Alarms = {}
    marks, latest = NO_WATERMARKS, BEGINNING
    in_flight: Rows = []
    decided = world.catalog.decided
    seen, clock, drains, commands = 0, BEGINNING, False, Commands(world)
    before = datetime.min.replace(tzinfo=UTC)
    for record in decided:
        if record.state != "committed" or record.manifest is None:
            found.append(f"epoch {record.epoch} is {record.state} at the end")
            continue
        manifest = world.store.read_manifest(record.manifest)
        slice = manifest.slices.get(SOURCE)
        if slice is not None and slice.start["position"] != seen:
            found.append(f"epoch {record.epoch} starts at {slice.start}, its parent ended at {seen}")
        at_end = seen == len(world.log)
        seen = seen if slice is None else slice.end["position"]
        if manifest.clock.epoch_time < clock:
            found.append(f"epoch {record.epoch} is at {manifest.clock.epoch_time}, its parent was at {clock}")
        clock = manifest.clock.epoch_time
        taken, in_flight = in_flight[:LOOP_RECORDS], in_flight[LOOP_RECORDS:]
        if drains:
            found.append(f"epoch {record.epoch} was opened after the drain")
        through = commands.through
        found += commands.wrong(manifest)
        commanded = commands.through > through
        drains = world.bounded and at_end and not taken and not commanded
        reached = max(marks.fire, behind(latest, DELAY))
        marks = Watermarks(late=marks.fire, fire=END if drains else reached)
        if manifest.clock.places[OPERATOR] != marks:
            found.append(f"epoch {record.epoch} ran with {manifest.clock.places[OPERATOR]}, not with {marks}")
        due = any(at <= clock for at in reminders.values()) or any(at <= reached for at in alarms.values())
        reasons = _reasons(slice is not None, due, bool(taken), commanded, drains)
        if record.opened_for != reasons:
            found.append(f"epoch {record.epoch} was opened for {record.opened_for}, not for {reasons}")
        outside = from_outside(slice, world.log, marks.late)
        latest = max(latest, BEGINNING if outside.latest is None else outside.latest)
        expected = follows([*outside.on_time, *taken], totals, reminders, clock, drains)
        changed, alarmed = alarms_after(alarms, outside.alarms, marks.fire)
        alarms = left(alarms, changed)
        output = [*expected.output, *alarmed, *((key, LATE) for key, _ in outside.late)]
        if manifest.counts.late_rows != ({OPERATOR: len(outside.late)} if outside.late else {}):
            found.append(f"epoch {record.epoch} counts {manifest.counts.late_rows} late rows, not {outside.late}")
        if manifest.counts.dropped_timers != ({OPERATOR: expected.dropped} if expected.dropped else {}):
            found.append(f"epoch {record.epoch} dropped {manifest.counts.dropped_timers}, not {expected.dropped}")
        totals |= expected.totals
        reminders = {key: at for key, at in {**reminders, **expected.reminders}.items() if at is not None}
        in_flight += expected.in_flight
        state = _state_at(world, record.manifest)
        if state != (totals, reminders, alarms) or sorted(in_flight_at(manifest)) != sorted(in_flight):
            found.append(f"state at epoch {record.epoch} is {state}, not {totals, reminders, alarms}")
        in_flight = in_flight_at(manifest)  # in the order of the subtasks' records
        if world.commit == "synchronous" and record.committed_at and record.started_at < before:
            found.append(f"epoch {record.epoch} was opened before its parent was committed")
        before = record.committed_at or before
        shown = Counter(world.target.visible.get(record.epoch, []))
        if shown != Counter(output):
            found.append(f"the sink shows {shown} for epoch {record.epoch}, not {output}")
    overdue = [at for at in alarms.values() if at <= behind(latest, DELAY)]
    if seen != len(world.log) or in_flight or reminders or overdue:
        found.append(
            f"{seen} of {len(world.log)} events were processed; remaining: {in_flight}, {reminders} and {alarms}"
        )
    if commands.through < len(world.commands) and not drains:
        found.append(f"{commands.through} of {len(world.commands)} commands on standing queries were carried out")
    if extra := set(world.target.visible) - {record.epoch for record in decided}:
        found.append(f"the sink shows epochs that were never decided: {sorted(extra)}")
    return found


def leftovers(world: World) -> list[str]:
    """Return files and staged rows without references."""
    referenced: set[str] = set()
    for record in world.catalog.decided:
        if record.manifest is not None:
            manifest = world.store.read_manifest(record.manifest)
            referenced |= {record.manifest.path, *(delta.file.stored_in for delta in manifest.deltas)}
            referenced |= {manifest.queries.stored_in} if manifest.queries is not None else set()
    orphans = [path for path in world.store.list(world.catalog.branch) if path not in referenced]
    return orphans + [f"staged {unique}" for unique in world.target.staged]


def _reasons(input: bool, due: bool, in_flight: bool, command: bool, drain: bool) -> tuple[Trigger, ...]:
    held: dict[Trigger, bool] = {
        "input": input,
        "due": due,
        "in_flight": in_flight,
        "command": command,
        "drain": drain,
    }
    return tuple(trigger for trigger, holds in held.items() if holds)


def _state_at(world: World, snapshot: ManifestReference) -> tuple[Totals, Reminders, Alarms]:
    links = [manifest.deltas for manifest in reversed(list(history(world.store, snapshot)))]
    waiting = [read_waiting(world.store, links, table) for table in (REMINDERS, ALARMS)]
    return read_totals(world.store, links), waiting[0], waiting[1]
