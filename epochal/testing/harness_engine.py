"""The engine of the harness: versions of a pipeline over replaced sources and sinks, and attempts that run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from epochal.contracts.catalog import AS_THE_EXECUTION, EpochCounts, EpochRecord, EpochTerms, ManifestReference
from epochal.contracts.conditions import Trigger, microseconds
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Configuration, ExecutionOrders
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.source import Slice, Source
from epochal.engine.assembly import spark_program
from epochal.engine.commits import CommitQueue, drain
from epochal.engine.compaction import Compaction
from epochal.engine.coordinator import Coordinator
from epochal.engine.planner import PipelinePlan
from epochal.engine.position import PendingBases
from epochal.engine.program import CurrentProgram, Program, changes_since, check_continues, going_on
from epochal.engine.reconfiguration import Reconfigurations
from epochal.engine.recovery import Recovery, decided_scope, take_over
from epochal.engine.retention import Retention
from epochal.engine.triggers import Situation
from epochal.errors import EpochAborted, EpochalError, InvalidInput, SinkError
from epochal.pipeline.analysis import Analysis, analyse
from epochal.pipeline.graph import Graph
from epochal.snapshots.chain import Chain
from epochal.snapshots.lineage import extend
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.merging import merged
from epochal.snapshots.store import SnapshotStore
from epochal.state.accepted_differences import check_acceptance
from epochal.state.evolution import TableChange
from epochal.state.table import StateTable
from epochal.state.watermarks import observed
from epochal.testing.in_memory import CallsOfTest, CapturingSink, InputRows, Schema, stand_ins
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState

_APPLICATION: Final = "test"


@dataclass(frozen=True)
class Version:
    """A version of the pipeline that has passed analysis, over the sources and sinks of the test."""

    number: int
    configuration: Configuration
    analysis: Analysis
    plan: PipelinePlan
    sources: dict[str, Source]
    sinks: dict[str, CapturingSink]

    @property
    def graph(self) -> Graph:
        return self.analysis.graph


@dataclass(frozen=True)
class Upgrade:
    """The result of an upgrade. ``tables``: the effect on each state table, with notes; ``outputs``: the output of the
    first epoch, by sink."""

    tables: tuple[TableChange, ...]
    outputs: dict[str, pa.Table]


@dataclass(frozen=True)
class LateRows:
    """The number of late rows, by operator, in each committed epoch."""

    by_epoch: tuple[Mapping[str, int], ...] = ()

    @property
    def by_operator(self) -> dict[str, int]:
        """The number of late rows by operator, in all epochs."""
        return dict(sum((Counter(counts) for counts in self.by_epoch), Counter[str]()))

    @property
    def total(self) -> int:
        """The number of late rows of all operators, in all epochs."""
        return sum(self.by_operator.values())


class HarnessEngine:
    """Attempts of one application in this process. ``spark``: the session of all epochs; ``now``: the time of each."""

    def __init__(self, spark: SparkSession, folder: str, now: Callable[[], datetime]) -> None:
        self._spark = spark
        self._folder = folder
        self._now = now
        self._state = MemoryCatalogState()
        self._versions = 0
        self.store = SnapshotStore(f"{folder}/store")
        self.calls = CallsOfTest()
        self.current: Version
        self.coordinator: Coordinator

    def version(
        self,
        graph: Graph,
        configuration: Configuration,
        schemas: Mapping[str, Schema],
        tables: Mapping[str, InputRows],
        before: Version | None = None,
    ) -> Version:
        """Analyse the next version, like ``submit``, without activating it. Raises the errors of analysis."""
        self._versions += 1
        earlier = {} if before is None else before.sources
        graph, sources = stand_ins(graph, self._spark, self.calls, schemas, tables, earlier)
        analysis = analyse(graph, self._spark, configuration, connected=False)
        sinks = {node.name: CapturingSink(node.name, self._folder) for node in graph.sinks}
        plan = PipelinePlan.of(analysis, sources)
        return Version(self._versions, configuration, analysis, plan, sources, sinks)

    @property
    def program(self) -> Program:
        return self.coordinator.current.program

    @property
    def decided(self) -> list[EpochRecord]:
        """Prepared and committed epochs, in order."""
        return self._state.decided

    def begin(self, version: Version) -> None:
        """Begin an attempt that runs ``version``: recover from the latest prepared snapshot.

        Raises ``IncompatibleState`` if the version cannot continue from it.
        """
        attempt = self._state.attempt + 1
        program = self._program(version, attempt)
        catalog, current = _Catalog(self._state, attempt), CurrentProgram(program)
        commits = CommitQueue(catalog, current)
        position = Recovery(program, catalog, self.store, commits, no_pause, lambda waiting: None).run()
        changes = [] if position.head is None else changes_since(self.store, position.head, program)
        program = going_on(program, position.snapshot, position.next_epoch)
        current.replace(program)
        bases = PendingBases()
        self.coordinator = Coordinator(
            current, catalog, self.store, commits, position, bases, changes=changes, now=self._now
        )
        compaction = Compaction(self.store, position, bases, current)
        self._retention = commits.retain = Retention(self.store, current, compaction, self.coordinator.aborted)
        self._catalog, self._commits, self.current = catalog, commits, version

    def upgrade(
        self,
        version: Version,
        configuration: Configuration,
        acceptance: Acceptance,
        first_epoch: Callable[[], dict[str, pa.Table]],
    ) -> Upgrade:
        """Activate ``version`` like a running driver (``engine/reconfiguration.py``). ``configuration``: configuration
        of this upgrade only.

        Raises ``InvalidInput`` if ``acceptance`` names no difference, ``IncompatibleState``, and the errors of the
        first epoch; the previous version is then active again.
        """
        before, position = self.current, self.coordinator.position
        program = self._program(replace(version, configuration=configuration), self._state.attempt, acceptance)
        changes = () if position.head is None else check_continues(self.store, position.head, program)
        check_acceptance(changes, acceptance)
        outputs: dict[str, pa.Table] = {}

        def first() -> None:
            self.current = version
            outputs.update(first_epoch())

        switching = Reconfigurations(
            self.coordinator, self._commits, self._retention, self._catalog, lambda order: program, self._take_over
        )
        try:
            switching.switch(program, first)
        except BaseException:
            self.current = before
            raise
        return Upgrade(changes, outputs)

    def run(self, slices: Mapping[str, Slice], opened_for: Sequence[Trigger]) -> Manifest:
        """Run one epoch and commit it. Raises ``EpochAborted``."""
        manifest = self.coordinator.run_epoch(slices, opened_for)
        drain(self._commits, no_pause, lambda waiting: None)
        return manifest

    def outputs(self, epoch: EpochKey) -> dict[str, pa.Table]:
        """The rows of a committed epoch, by sink."""
        scope, version = EpochScope(_APPLICATION, epoch, self._state.attempt, None), self.current
        return {name: sink.rows(scope, version.plan.sinks[name]) for name, sink in version.sinks.items()}

    def state(self, table: StateTable, chain: Chain) -> pa.Table:
        """The rows of a state table at the end of ``chain``."""
        rows = merged(self.store, table, chain, range(self.current.configuration.max_parallelism))
        return rows.drop_columns(["_kg"])

    def advance_watermarks(self, watermark: datetime) -> None:
        """Make the next epoch run as if the last epoch had observed this time in every declaration."""
        position, graph = self.coordinator.position, self.current.plan.time.graph
        snapshot, time = position.snapshot, microseconds(watermark)
        if snapshot is None:
            raise InvalidInput("No snapshot exists whose watermarks can advance.")
        latest = {
            declaration.name: dict.fromkeys(snapshot.clock.partitions[declaration.name], time + declaration.delay)
            for declaration in graph.declarations
        }
        seen = snapshot.conditions.seen(observed(graph, snapshot.clock, latest))
        position.snapshot = snapshot.model_copy(update={"conditions": seen})

    def abort_at_decision(self, slices: Mapping[str, Slice], opened_for: Sequence[Trigger]) -> dict[str, pa.Table]:
        """Run an epoch that is aborted when all of its tasks have ended; the next epoch covers its slices.

        Returns the written rows of each sink and of each durable state table. Raises ``EpochAborted`` if it is aborted
        for another reason.
        """
        written: dict[str, pa.Table] = {}

        def lost(epoch: int, reference: ManifestReference) -> None:
            manifest = self.store.read_manifest(reference)
            scope = EpochScope(_APPLICATION, manifest.key, manifest.attempt, None)
            for name, sink in self.current.sinks.items():
                written[f"sink {name!r}"] = sink.undecided_rows(scope, self.current.plan.sinks[name])
            chains = self.coordinator.position.chains
            written.update(self._state_of({id: extend(chain, id, manifest) for id, chain in chains.items()}))
            raise _LostEpoch

        self._catalog.before_decision = lost
        try:
            self.coordinator.run_epoch(slices, opened_for)
        except EpochAborted as error:
            if not isinstance(error.__cause__, _LostEpoch):
                raise
        finally:
            self._catalog.before_decision = None
        return written

    def check_same(self, first: Mapping[str, pa.Table]) -> None:
        """Raises ``AssertionError`` if the aborted run of the last epoch wrote different rows from its repetition."""
        epoch = self.coordinator.position.parent
        assert epoch is not None  # it has just been committed
        again = {f"sink {name!r}": rows for name, rows in self.outputs(epoch).items()}
        again.update(self._state_of(self.coordinator.position.chains))
        for what, rows in again.items():
            one, other = _counted(first[what]), _counted(rows)
            if one != other:
                raise AssertionError(
                    f"Epoch {epoch.epoch} was aborted and rerun, and {what} has different rows. Only in the first "
                    f"run: {_shown(one - other)}; only in the second: {_shown(other - one)}. The pipeline depends on "
                    "more than its input, such as the clock, a random number or the order of a set."
                )

    def _state_of(self, chains: Mapping[str, Chain]) -> dict[str, pa.Table]:
        tables = [table for table in self.program.participants.tables if table.durable]
        return {f"state table {table.id!r}": self.state(table, chains[table.id]) for table in tables}

    def _program(self, version: Version, attempt: int, acceptance: Acceptance = NOTHING_ACCEPTED) -> Program:
        orders = ExecutionOrders(
            application=_APPLICATION,
            execution=_APPLICATION,
            attempt=attempt,
            artifact=f"test-{version.number}",
            configuration=version.configuration,
            acceptance=acceptance,
            version=version.number,
            store=self.store.url,
            cache_directory=f"{self._folder}/cache",
        )
        return spark_program(
            orders, version.graph, version.plan, self._spark, self.store, version.sources, version.sinks
        )

    def _take_over(self, program: Program) -> None:
        position = self.coordinator.position
        scope = decided_scope(program.orders, position.branch, position.head)
        take_over(program.participants, scope, None, no_pause, lambda waiting: None)


class _LostEpoch(EpochalError):
    """The requested abort of an epoch that the test runs again."""


class _Catalog(MemoryCatalog):
    before_decision: Callable[[int, ManifestReference], None] | None = None

    def prepare_epoch(
        self,
        epoch: int,
        parent: EpochKey | None,
        manifest: ManifestReference,
        counts: EpochCounts,
        terms: EpochTerms = AS_THE_EXECUTION,
    ) -> None:
        if self.before_decision is not None:
            self.before_decision(epoch, manifest)
        super().prepare_epoch(epoch, parent, manifest, counts, terms)


def no_pause(seconds: float) -> None:
    raise SinkError("a sink of the test cannot commit")


def _counted(rows: pa.Table) -> Counter[str]:
    return Counter(map(repr, rows.to_pylist()))


def _shown(rows: Counter[str]) -> str:
    return ", ".join(sorted(rows.elements())[:5]) or "none"


def situation_of(coordinator: Coordinator, slices: Mapping[str, Slice]) -> Situation:
    """The situation of a loop without an interval between epochs."""
    return replace(coordinator.situation(), has_room=True, ended=False, has_input=coordinator.has_input(slices))
