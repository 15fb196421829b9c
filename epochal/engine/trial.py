"""A trial: another version runs committed epochs again, in shadow, from the snapshot before them.

A trial decides no epoch and writes to no sink. It takes the slices of the manifests, and writes deltas to temporary
branches. The resulting state is compared with the existing state, key by key. Since not all sinks can be read back, the
previous version runs again, too, and the output rows of both versions are compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from uuid import uuid4

from pyspark.sql import SparkSession

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.conditions import END, EpochConditions
from epochal.contracts.configuration import ExecutionOrders
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.inbox import NO_INBOX, Inbox
from epochal.contracts.source import Slice, SliceLimits
from epochal.engine.assembly import assemble, with_inbox
from epochal.engine.epoch_input import conditions_after, in_rounds
from epochal.engine.job import Collected, EpochPlan, collect
from epochal.engine.manifests import manifest_of
from epochal.engine.program import Program, accepting_everything, check_continues, going_on
from epochal.engine.trial_comparison import KeepingSink, compare_outputs, compare_states
from epochal.engine.trial_report import SinkComparison, TrialReport, trial_folders
from epochal.errors import InvalidInput
from epochal.pipeline.graph import Graph
from epochal.snapshots.chain import Chain
from epochal.snapshots.in_flight import internal_sources
from epochal.snapshots.lineage import extend, history, read_chains
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable


@dataclass(frozen=True)
class Tried:
    """A version to run in a trial."""

    orders: ExecutionOrders
    graph: Graph


def run_trial(
    before: Tried,
    after: Tried,
    spark: SparkSession,
    head: ManifestReference,
    epochs: int,
    name: str | None = None,
    inbox: Inbox = NO_INBOX,
) -> TrialReport:
    """Run the last ``epochs`` epochs up to ``head`` again, with the version ``after`` and with the original ``before``.

    ``name``: unique name of the trial; its :func:`trial_folders` are removed at the end. ``inbox``: the entry calls
    that these epochs have taken. Raises ``IncompatibleState``, ``InvalidInput`` without such epochs, and errors that
    abort an epoch.
    """
    started = time.monotonic()
    store = SnapshotStore(after.orders.store)
    replayed = list(islice(history(store, head), epochs))[::-1]
    if not replayed:
        raise InvalidInput("There is no committed epoch to rerun.")
    base = replayed[0].parent
    folders = trial_folders(name or uuid4().hex[:12])
    try:
        trials = {
            side: _Trial(with_inbox(_recording(tried, spark, store, side), inbox), folder, store, base)
            for side, tried, folder in (("after", after, folders[1]), ("before", before, folders[0]))
        }
        for trial in trials.values():
            trial.run(replayed)
        tables = compare_states(store, head, trials["after"].tables, trials["after"].chains)
        sinks = tuple(_compared_sinks(spark, replayed, trials["before"].handles, trials["after"].handles))
    finally:
        for folder in folders:
            for path in store.list(folder):
                store.delete(path)
    return TrialReport(
        same=all(table.same for table in tables) and all(sink.same for sink in sinks),
        base=None if base is None else base.epoch,
        epochs=len(replayed),
        seconds=time.monotonic() - started,
        tables=tuple(tables),
        sinks=sinks,
    )


class _Trial:
    """Runs the replayed epochs of one version on an undecided branch."""

    def __init__(self, program: Program, branch: str, store: SnapshotStore, base: ManifestReference | None) -> None:
        if base is not None:
            # No execution continues from these epochs; a preflight has checked the version's consent at the head.
            check_continues(store, base, accepting_everything(program))
            program = going_on(program, store.read_manifest(base))
        self._program, self._store = program, store
        self._branch = UndecidedBranch(program, branch, store, base)
        self.handles: dict[str, list[Handle]] = {name: [] for name in program.participants.sinks}

    @property
    def chains(self) -> Mapping[str, Chain]:
        return self._branch.chains

    @property
    def parent(self) -> Manifest | None:
        """Parent of the next epoch."""
        return self._branch.parent

    @property
    def tables(self) -> Sequence[StateTable]:
        return self._program.participants.tables

    def run(self, replayed: Sequence[Manifest]) -> None:
        self._program.runner.activate()
        for manifest in replayed:
            self._run_epoch(manifest)

    def _run_epoch(self, replayed: Manifest) -> None:
        slices = self._slices(replayed)
        queries = b"" if replayed.queries is None else self._store.read_file(replayed.queries, "the trial")
        collected = self._branch.run(replayed.epoch, slices, self._conditions(replayed, slices), queries)
        for name, handles in collected.sinks.items():
            self.handles[name] += handles

    def _conditions(self, replayed: Manifest, slices: Mapping[str, Slice]) -> EpochConditions:
        """Conditions with the original epoch time and commands; watermarks come from this version's observations."""
        time, was = self._program.plan.time, replayed.clock
        sources = self._program.participants.sources
        at_end = {name for name, place in was.places.items() if place.fire == END}
        ended = frozenset(time.declared if replayed.drained else at_end.intersection(time.declared))
        opening = time.opening(sources, slices, was.epoch_time, was.attempt_began, known=was.partitions, ended=ended)
        conditions = in_rounds(conditions_after(time.graph, self.parent, opening), sources, self.parent, slices)
        before = replayed.conditions
        conditions = conditions.model_copy(update={"queries": before.queries})
        return conditions.opened(*before.opened_for, commands=before.commands)

    def _slices(self, replayed: Manifest) -> dict[str, Slice]:
        """Slices of external sources as recorded; this version's own records in flight, the same number as recorded."""
        sources = self._program.participants.sources
        inside = internal_sources(sources)
        slices = {name: slice for name, slice in replayed.slices.items() if name in sources and name not in inside}
        for name, source in inside.items():
            slice = source.slice_of(self.parent, self._limits(replayed.slices.get(name)))
            if slice is not None:
                slices[name] = slice
        return slices

    def _limits(self, replayed: Slice | None) -> SliceLimits:
        """The recorded number of records, so that an unchanged version takes the same steps."""
        most = self._program.configuration.max_records_per_epoch
        return SliceLimits(most if replayed is None or replayed.rows is None else replayed.rows)


def _recording(tried: Tried, spark: SparkSession, store: SnapshotStore, name: str) -> Program:
    """A program whose sinks store their rows for the comparison."""
    folder = f"{tried.orders.cache_directory}/outputs-{name}"
    orders = tried.orders.model_copy(update={"shadow": False})
    return assemble(orders, tried.graph, spark, store, sink=lambda node: KeepingSink(node.name, folder))


def _compared_sinks(
    spark: SparkSession,
    replayed: Sequence[Manifest],
    before: Mapping[str, list[Handle]],
    after: Mapping[str, list[Handle]],
) -> Iterator[SinkComparison]:
    for sink in sorted({*before, *after}):
        committed = [manifest.sinks[sink] for manifest in replayed if sink in manifest.sinks]
        rows = sum(handle.rows for handles in committed for handle in handles.handles) if committed else None
        yield compare_outputs(spark, sink, rows, before.get(sink, []), after.get(sink, []))


class UndecidedBranch:
    """A branch of epochs that are never decided, for trials and for training a session.

    ``parent``: manifest of the last epoch, which is not written; before the first epoch, that of ``base``. ``chains``:
    files by state table.
    """

    def __init__(self, program: Program, name: str, store: SnapshotStore, base: ManifestReference | None) -> None:
        self._program, self._name, self._store = program, name, store
        self._head = base
        self.parent: Manifest | None = None if base is None else store.read_manifest(base)
        self.chains: dict[str, Chain] = read_chains(store, base, [table.id for table in program.participants.tables])

    def run(
        self, epoch: int, slices: Mapping[str, Slice], conditions: EpochConditions, queries: bytes = b""
    ) -> Collected:
        """Run one epoch with these slices, and return its handles. Raises errors that abort an epoch."""
        program, orders = self._program, self._program.orders
        key = EpochKey(self._name, epoch)
        scope = EpochScope(orders.application, key, 1, None if self._head is None else self._head.key)
        plan = EpochPlan(scope, conditions, slices, dict(self.chains), queries)
        collected = collect(
            program.runner.run(plan, orders.configuration.epoch_timeout_seconds),
            subtasks=program.subtasks,
            sinks=list(program.participants.sinks),
            rejecting=program.plan.time.failing,
            loops=list(program.participants.loops),
            dead_letters=program.participants.dead_letters,
        ).stored(self._store)
        self.parent = manifest_of(program, self._head, plan, datetime.now(UTC), collected, before=self.parent)
        self.chains = {table: extend(chain, table, self.parent) for table, chain in self.chains.items()}
        self._head = ManifestReference(branch=key.branch, epoch=key.epoch, path=f"{key.branch}/unwritten", sha256="")
        return collected
