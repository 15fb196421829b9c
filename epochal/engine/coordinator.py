"""E1 to E4 of one epoch, and its abort: the driver's part of the epoch commit (thesis 4.1.3).

The coordinator runs one epoch to its decision or its abort, without background work and without Spark. An undecided
epoch leaves no files; a decided one goes to the commit queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from epochal.contracts.catalog import (
    Catalog,
    Change,
    EpochState,
    EpochTerms,
    ManifestReference,
    ShownDue,
    ShownWatermarks,
)
from epochal.contracts.conditions import Command, EpochConditions, Trigger, as_datetime, microseconds
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.measurements import MOST_NAMES, PlacementReport
from epochal.contracts.source import Slice, SliceLimits
from epochal.declarations.entry import ENTRIES, calls_through
from epochal.engine import points
from epochal.engine.commits import CommitQueue
from epochal.engine.epoch_input import conditions_after, in_rounds, punctuated_together
from epochal.engine.failures import failure_of
from epochal.engine.job import Collected, EpochPlan, Participants, collect
from epochal.engine.manifests import manifest_of
from epochal.engine.meter import Meter
from epochal.engine.position import PendingBases, Position
from epochal.engine.program import CurrentProgram, Program
from epochal.engine.source_wait import SourceWait
from epochal.engine.standing_queries import Chosen, StandingQueries
from epochal.engine.triggers import NextDue, Situation, left_over, next_due
from epochal.engine.undecided import Undecided
from epochal.errors import Conflict, EpochAborted, Fenced, OutcomeUnknown, SourceError, error_class
from epochal.logs import about
from epochal.snapshots import layout
from epochal.snapshots.chain import began_empty
from epochal.snapshots.in_flight import InternalSource, input_held_back, slices_in_flight, under_way
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.packs import Pack, carried_by
from epochal.snapshots.storage_errors import storage_errors
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger(__name__)


@dataclass
class Coordinator:
    """Runs the epochs of one attempt, one at a time. Not thread-safe, except for the commit queue."""

    current: CurrentProgram
    catalog: Catalog
    store: SnapshotStore
    commits: CommitQueue
    position: Position
    bases: PendingBases
    now: Callable[[], datetime]
    """Current epoch time, in UTC: the attempt's :class:`EpochClock`."""
    changes: list[Change] = field(default_factory=list)
    """Reconfigurations that take effect with the next epoch."""
    aborted: list[EpochScope] = field(default_factory=list)
    """Aborted epochs, which E7 sweeps again because late tasks may have written files after the first sweep."""
    meter: Meter = field(default_factory=Meter)
    source_wait: SourceWait = field(default_factory=SourceWait)
    queries: StandingQueries = field(init=False)
    _planned_in: float = field(default=0.0, init=False)
    _next_due: tuple[Manifest, Program, frozenset[str], NextDue | None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.queries = StandingQueries(self.store)

    @cached_property
    def attempt_began(self) -> int:
        """Epoch time from which idleness of sources is measured."""
        return microseconds(self.now())

    @property
    def _program(self) -> Program:
        return self.current.program

    @property
    def _participants(self) -> Participants:
        return self.current.program.participants

    def _conditions(self, slices: Mapping[str, Slice], draining: bool) -> EpochConditions:
        """Conditions of the next epoch, opened now with these slices."""
        time, sources = self._program.plan.time, self._participants.sources
        ended = frozenset(time.declared) if draining else self._ended
        opening = time.opening(sources, slices, microseconds(self.now()), self.attempt_began, ended=ended)
        parent = self.position.snapshot
        return in_rounds(conditions_after(time.graph, parent, opening), sources, parent, slices)

    @property
    def _ended(self) -> frozenset[str]:
        """Declarations whose input has ended while others continue. When all have ended, the drain ends them."""
        return frozenset() if self._program.is_at_end else self._program.plan.time.ended(self._program.at_end)

    @property
    def drained(self) -> bool:
        """True if the last epoch has run: the input has ended, and all windows and timers have fired."""
        snapshot = self.position.snapshot
        return snapshot is not None and snapshot.drained

    @property
    def _to_drain(self) -> bool:
        """True if one more epoch must fire what waits, since all input has ended.

        Without event time and timers nothing waits, and a later run may continue with more input.
        """
        snapshot = self.position.snapshot
        if snapshot is None or snapshot.drained or not self._program.is_at_end:
            return False
        return bool(self._program.plan.time.declared) or not self._participants.operators.keys().isdisjoint(
            snapshot.due
        )

    @property
    def until_due(self) -> float | None:
        """Seconds until a time is due without input; 0 if one is due now, ``None`` if only input can make one due."""
        snapshot = self.position.snapshot
        if snapshot is None or not snapshot.due:
            return None
        due = self._next_due_after(snapshot)
        now = max(microseconds(self.now()), snapshot.clock.epoch_time)
        return None if due is None else max(0, due.at - now) / 1_000_000

    def _next_due_after(self, snapshot: Manifest) -> NextDue | None:
        """Next due time, cached per snapshot and program, since the loop reads it repeatedly."""
        if snapshot.drained:
            return None
        program, ended, cached = self._program, self._ended, self._next_due
        if cached is not None and cached[0] is snapshot and cached[1] is program and cached[2] == ended:
            return cached[3]
        graph, operators = program.plan.time.graph, program.participants.operators
        due = next_due(graph, snapshot.clock, snapshot.due, operators, self.attempt_began, ended)
        self._next_due = snapshot, program, ended, due
        return due

    def situation(self, until_interval: float = 0.0, *, hurried: bool = False, commanded: bool = False) -> Situation:
        """Everything that the loop's decision depends on, except for new input. ``until_interval``: in seconds."""
        sources, snapshot = self._participants.sources, self.position.snapshot
        return Situation(
            has_room=self.commits.has_room,
            ended=all(source.ended for source in sources.values()),
            until_interval=until_interval,
            until_due=self.until_due,
            in_flight=bool(under_way(sources, snapshot)),
            urgent=not self.drained and any(source.urgent for source in sources.values()),
            left_over=self._left_over,
            to_drain=self._to_drain,
            drained=self.drained,
            hurried=hurried,
            commanded=commanded,
        )

    @property
    def _left_over(self) -> bool:
        snapshot = self.position.snapshot
        if snapshot is None or snapshot.drained:
            return False
        return left_over(snapshot.clock, snapshot.due, self._participants.operators)

    def plan_slices(self, limits: SliceLimits) -> dict[str, Slice]:
        """E1, first half: the next slice of each source that has new input, or records in flight."""
        points.E1_BEFORE.hit(self.position.next_epoch)
        every, parent = self._participants.sources, self.position.snapshot
        outside = {} if self.drained else every
        sources = {} if input_held_back(every, parent) else outside
        began = self.meter.clock()
        planned = self.source_wait.plan(sources, limits)
        self._planned_in = self.meter.clock() - began
        external = {name: source for name, source in outside.items() if not isinstance(source, InternalSource)}
        self.meter.looked(external, self.source_wait.names)
        found = punctuated_together(sources, planned)
        return found | slices_in_flight(every, parent, limits)

    def has_input(self, slices: Mapping[str, Slice]) -> bool:
        """True if any of these slices comes from an external source."""
        sources = self._participants.sources
        return any(not isinstance(sources[name], InternalSource) for name in slices)

    def run_epoch(
        self, slices: Mapping[str, Slice], opened_for: Sequence[Trigger], commands: Sequence[Command] = ()
    ) -> Manifest:
        """Run one epoch over ``slices`` to its decision.

        Raises ``EpochAborted`` (with the cause) when the epoch was aborted: its number is not reused, and the next
        epoch covers its slice (thesis 4.5.3). Raises ``Fenced`` when a later attempt has taken over.
        """
        number = self.position.next_epoch
        with about(epoch=number):
            return self._run_epoch(number, slices, opened_for, commands)

    def _run_epoch(
        self, number: int, slices: Mapping[str, Slice], opened_for: Sequence[Trigger], commands: Sequence[Command]
    ) -> Manifest:
        scope = EpochScope(
            application=self._program.orders.application,
            key=EpochKey(self.position.branch, number),
            attempt=self._program.orders.attempt,
            parent=self.position.parent,
        )
        began = self.meter.clock()
        planned_in, self._planned_in = self._planned_in, 0.0
        with self.meter.step("E1", number, before=planned_in):
            conditions = self._conditions(slices, "drain" in opened_for).opened(*opened_for, commands=commands)
            chosen = self.queries.chosen(scope.key, self.position.snapshot, conditions, self._program)
            points.E1_SLICES_CHOSEN.hit(number)
            self.catalog.open_epoch(number, scope.parent)
            self.position.next_epoch = number + 1
        log.info(
            "E1 open: epoch %s on %s for %s, slices of %s",
            scope.key,
            scope.parent,
            ", ".join(opened_for),
            ", ".join(slices) or "no source",
        )
        undecided = Undecided(scope, chosen)
        try:
            points.E1_OPENED.hit(number)
            with self.meter.storing(number):
                chosen.write(self.store)
            if chosen.is_new:
                points.E1_QUERIES_WRITTEN.hit(number)
            before = {} if self.position.snapshot is None else self.position.snapshot.machines
            slow = self.meter.lasting_stragglers()
            plan = EpochPlan(scope, chosen.conditions, slices, dict(self.position.chains), chosen.data, before, slow)
            undecided.collected = collected = self._run_and_collect(plan)
            with self.meter.step("E4", number):
                pack = self._pack(scope, collected, chosen)
                if pack is not None:
                    plan, collected = replace(plan, conditions=chosen.placed(pack)), collected.placed(pack)
                manifest = self._manifest(plan, collected, chosen.changes)
                with storage_errors(self.store.location(layout.manifests(scope.branch))):
                    points.E4_BEFORE_MANIFEST.hit(number)
                with self.meter.storing(number):
                    undecided.reference = reference = self.store.write_manifest(manifest, pack)
                points.E4_MANIFEST_WRITTEN.hit(number)
                self._decide(scope, manifest, reference)
        except Fenced:
            undecided.forget(self.store, self._participants)
            raise
        except Exception as raised:  # noqa: BLE001 raised again, with the cause that a source finds
            error = self._cause(raised, slices)
            failure = failure_of(error)
            undecided.abort(self.store, self._participants, self.catalog, failure)
            self.aborted.append(scope)
            raise EpochAborted(f"Epoch {scope.key} was aborted: {failure.message}") from error
        self._accept(scope, manifest, reference, began, collected.repeated)
        self.queries.decided(chosen)
        return manifest

    def _cause(self, error: Exception, slices: Mapping[str, Slice]) -> Exception:
        """``error``, or the problem that a source finds with its slice."""
        kind = error_class(failure_of(error).type)
        if kind is not None and issubclass(kind, SourceError):
            for name, slice in slices.items():
                with suppress(SourceError):  # an unavailable source finds no cause
                    found = self._participants.sources[name].unreadable(slice)
                    if found is not None:
                        found.__cause__ = error
                        return found
        return error

    def _run_and_collect(self, plan: EpochPlan) -> Collected:
        epoch, program = plan.scope.epoch, self._program
        points.E2_BEFORE.hit(epoch)
        with self.meter.step("E2", epoch):
            answers = program.runner.run(plan, program.configuration.epoch_timeout_seconds)
        points.E2_RAN.hit(epoch)
        with self.meter.step("E3", epoch):
            collected = collect(
                answers,
                subtasks=program.subtasks,
                sinks=list(program.participants.sinks),
                rejecting=program.plan.time.failing,
                loops=list(program.participants.loops),
                dead_letters=program.participants.dead_letters,
            )
        self.meter.tasks_took(epoch, answers.task_seconds)
        self.meter.job_ran(epoch, answers.job)
        self.meter.ran_on(
            PlacementReport(
                epoch=epoch,
                machines={name: tuple(machines) for name, machines in collected.machines.items()},
                unplaced=answers.unplaced,
                read_bytes=dict(answers.read_bytes),
                moved_stragglers=tuple(answers.moved_stragglers[-MOST_NAMES:]),
            )
        )
        parallelism, work = program.configuration.parallelism, answers.worked(program.subtasks)
        written = {name: sum(handle.rows for handle in handles) for name, handles in collected.sinks.items()}
        self.meter.operators_worked(
            epoch, program.orders.version, parallelism, work, read=answers.rows_read, written=written
        )
        log.info("E3 collect: epoch %s, %d handles", plan.scope.key, len(collected.all))
        points.E3_COLLECTED.hit(epoch)
        return collected

    def _pack(self, scope: EpochScope, collected: Collected, chosen: Chosen) -> Pack | None:
        """The pack of the small files of the epoch; ``None`` if it has none."""
        files = {**chosen.carried, **carried_by(collected.all)}
        return Pack.of(scope.key, scope.attempt, files) if files else None

    def _manifest(self, plan: EpochPlan, collected: Collected, changes: Sequence[Change] = ()) -> Manifest:
        bases = self.bases.take()
        checkpoints: dict[str, dict[str, Any]] = {}
        if bases or self.bases.checkpoint_requested:
            checkpoints = {name: source.checkpoint() for name, source in self._participants.sources.items()}
        manifest = manifest_of(
            self._program,
            self.position.head,
            plan,
            self.now(),
            collected,
            bases=bases,
            source_checkpoints=checkpoints,
            changes=[*self.changes, *changes],
            before=self.position.snapshot,
        )
        for table, subtasks in began_empty(manifest).items():
            log.warning(
                "state %s is not durable and its cache is missing: subtasks %s begin empty in epoch %s",
                table,
                ", ".join(map(str, subtasks)),
                manifest.key,
            )
        return manifest

    def _decide(self, scope: EpochScope, manifest: Manifest, reference: ManifestReference) -> None:
        """E4: the compare-and-set. After an unknown outcome the row is read back, and the call is repeated if
        needed."""
        terms = EpochTerms(
            version=self._program.orders.version,
            changes=manifest.changes,
            opened_for=manifest.conditions.opened_for,
            watermarks={name: ShownWatermarks.of(place) for name, place in manifest.clock.places.items()},
            next_due=_shown(self._next_due_after(manifest)),
            calls_through=calls_through(manifest.slices.get(ENTRIES)),
        )
        while True:
            try:
                self.catalog.prepare_epoch(scope.epoch, scope.parent, reference, manifest.counts, terms)
                break
            except OutcomeUnknown:
                record = self.catalog.epoch(scope.epoch)
                if record is not None and record.manifest == reference:
                    break
                state: EpochState | None = record.state if record else None
                if state != "started":
                    raise Conflict(
                        f"Epoch {scope.key} is {state or 'missing'} and was not prepared by this attempt."
                    ) from None
        log.info("E4 prepare: epoch %s is decided, manifest %s", scope.key, reference.path)

    def _accept(
        self,
        scope: EpochScope,
        manifest: Manifest,
        reference: ManifestReference,
        began: float,
        repeated: Callable[[], bool],
    ) -> None:
        points.E4_PREPARED.hit(scope.epoch)
        for name, slice in manifest.slices.items():
            source = self._participants.sources[name]
            source.accept(slice)
            self.meter.accepted(name, source)
        self.position.advance(manifest, reference)
        self.bases.published(manifest)
        self.changes.clear()
        self.commits.submit(scope, manifest, began, repeated)


def _shown(due: NextDue | None) -> ShownDue | None:
    if due is None:
        return None
    return ShownDue(at=as_datetime(due.at), operator=due.operator, clock=due.clock, until=as_datetime(due.until))
