"""An application version that is ready to run, and the reference to the active version.

The coordinator, commit queue, retention, compaction and loop share one :class:`CurrentProgram` and read it at each use.
Recovery, upgrade, rescale and the return after a failed first epoch replace this one value, so that no component can
keep parts of the previous version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from epochal.contracts.catalog import Change, ManifestReference
from epochal.contracts.configuration import Acceptance, Configuration, ExecutionOrders
from epochal.engine.job import EpochRunner, Participants
from epochal.engine.planner import PipelinePlan
from epochal.errors import FileMissing, IncompatibleState
from epochal.pipeline.graph import Graph
from epochal.snapshots.continuation import continuation
from epochal.snapshots.in_flight import InternalSource
from epochal.snapshots.lineage import clock_of
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.accepted_differences import accepted_differences, check_acceptance
from epochal.state.continuing import continued
from epochal.state.evolution import TableChange, compare


@dataclass(frozen=True)
class Program:
    """A version with everything that its epochs need: the planned graph, sources, backends and the runner.

    ``orders`` has version, artifact, parameters and configuration. Creating a program writes no file.
    """

    orders: ExecutionOrders
    graph: Graph
    plan: PipelinePlan
    participants: Participants
    runner: EpochRunner

    @property
    def configuration(self) -> Configuration:
        return self.orders.configuration

    @cached_property
    def subtasks(self) -> Mapping[str, int]:
        """The number of subtasks of each operator."""
        planned = self.graph.subtasks(self.configuration)
        return {
            name: planned.get(name, self.configuration.parallelism_of(name)) for name in self.participants.operators
        }

    @property
    def at_end(self) -> frozenset[str]:
        """Sources that have ended for good; empty if a later run may read more input."""
        if not self.orders.drain or self.orders.available_now:
            return frozenset()
        return frozenset(name for name, source in self.participants.sources.items() if source.bounded and source.ended)

    @property
    def is_at_end(self) -> bool:
        """True if all external sources have ended for good."""
        sources = self.participants.sources
        outside = {name for name, source in sources.items() if not isinstance(source, InternalSource)}
        return bool(outside) and outside <= self.at_end


class CurrentProgram:
    """Reference to the active program of an attempt."""

    def __init__(self, program: Program) -> None:
        self._program = program
        program.runner.activate()

    @property
    def program(self) -> Program:
        return self._program

    def replace(self, program: Program) -> None:
        """Make ``program`` the active one. Called between epochs, when all decided epochs are committed."""
        before, self._program = self._program, program
        program.runner.activate(before.runner)


def check_continues(store: SnapshotStore, reference: ManifestReference, program: Program) -> tuple[TableChange, ...]:
    """Changes of each state table. Raises ``IncompatibleState`` when the program cannot continue from a snapshot."""
    head, configured = store.read_manifest(reference), program.configuration.max_parallelism
    if head.max_parallelism != configured:
        raise IncompatibleState(
            f"Snapshot {head.key} has max_parallelism {head.max_parallelism}, the configuration has {configured}. It "
            f"cannot change once state exists: set it to {head.max_parallelism}, or re-key the state (epochal rekey)."
        )
    loops, may_drop = program.graph.columns_of_loops, program.configuration.allow_dropped_state
    subtasks, acceptance = program.subtasks, program.orders.acceptance
    found = continuation(store, reference, program.participants.tables, loops, may_drop, subtasks, acceptance)
    if program.orders.version is None:
        check_acceptance(found.changes, acceptance)
    if found.problems:
        raise IncompatibleState(f"Snapshot {head.key} cannot be continued. {' '.join(found.problems)}")
    return found.changes


def accepting_everything(program: Program) -> Program:
    """``program`` with consent to every difference that can be accepted."""
    operators = tuple(sorted({table.operator for table in program.participants.tables}))
    acceptance = Acceptance(changed=operators, partial=operators)
    return replace(program, orders=program.orders.model_copy(update={"acceptance": acceptance, "version": 0}))


def going_on(program: Program, head: Manifest | None, first: int | None = None) -> Program:
    """``program`` after a snapshot: its state tables inherit from the lineage the expiry of rows and the epochs from
    which columns count. ``first``: number of the next epoch."""
    participants = program.participants
    if head is None:
        return program
    before = {table.id: table for table in head.tables}
    first = head.epoch + 1 if first is None else first
    tables = tuple(
        continued(table, before.get(table.id), clock_of(head, table.id), first) for table in participants.tables
    )
    if tables == tuple(participants.tables):
        return program
    participants = replace(participants, tables=tables)
    return replace(program, participants=participants, runner=program.runner.declaring(participants))


def changes_since(store: SnapshotStore, reference: ManifestReference, program: Program) -> list[Change]:
    """Changes that the first epoch after a snapshot records (design/epochs.md, reconfiguration)."""
    head, orders, participants = store.read_manifest(reference), program.orders, program.participants
    context: dict[str, Any] = {"version": orders.version, "by": orders.by, "message": orders.message}
    context = {name: value for name, value in context.items() if value is not None}
    found: list[Change] = []

    def changed(kind: str, **detail: Any) -> None:
        found.append(Change(kind=kind, detail={**detail, **context}))

    event_times = _differences(head.event_times, program.plan.time.declared)
    compared = compare(head.tables, participants.tables, acceptance=orders.acceptance)
    accepted = accepted_differences(compared, participants.tables)
    of_version: dict[str, Any] = {"event_times": event_times} if event_times else {}
    of_version |= {"accepted": accepted} if accepted else {}
    if head.artifact != orders.artifact or (accepted and head.parameters == orders.parameters):
        tables = {change.table: change.verdict for change in compared if change.verdict != "same"}
        changed("upgrade", artifact=[head.artifact, orders.artifact], tables=tables, **of_version)
    if head.parameters != orders.parameters:
        changed("parameters", changed=_differences(head.parameters, orders.parameters), **of_version)
    if rescaled := _rescaled(head, program):
        changed("rescale", **rescaled)
    targets = _targets(store, head)
    now = {name: sink.target for name, sink in participants.sinks.items()}
    if targets is not None and targets != now and not orders.shadow:
        changed("sinks", changed=_differences(targets, now))
    return found


def _rescaled(head: Manifest, program: Program) -> dict[str, Any]:
    """Changed numbers of subtasks: ``parallelism`` of the application, and ``parallelisms`` of operators that change
    otherwise; empty if there are none."""
    parallelism = [head.parallelism, program.configuration.parallelism]
    numbers = {name: [head.parallelism_of(name), number] for name, number in program.subtasks.items()}
    if head.artifact != program.orders.artifact:  # an operator without state may be new
        existing = {table.operator for table in head.tables}
        numbers = {name: found for name, found in numbers.items() if name in existing}
    changed = {name: found for name, found in numbers.items() if found[0] != found[1]}
    own = {name: found for name, found in changed.items() if found != parallelism}
    emptied = [table.id for table in program.participants.tables if not table.durable and table.operator in changed]
    return {
        **({"parallelism": parallelism} if parallelism[0] != parallelism[1] else {}),
        **({"parallelisms": own} if own else {}),
        **({"emptied": emptied} if emptied else {}),
    }


def _targets(store: SnapshotStore, head: Manifest) -> dict[str, str] | None:
    """Targets of a snapshot's sinks; a rekey has no output and keeps its parent's. ``None``: the manifest is
    missing."""
    try:
        while head.parent is not None and any(change.kind == "rekey" for change in head.changes):
            head = store.read_manifest(head.parent)
    except FileMissing:
        return None
    return {name: sink.target for name, sink in head.sinks.items()}


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Old and new value of each changed name; null for a missing value."""
    names = sorted({*before, *after})
    return {
        name: [before.get(name), after.get(name)]
        for name in names
        if (name in before) != (name in after) or before.get(name) != after.get(name)
    }
