"""A trial: epochs that were committed, run again by another version, in shadow, from the snapshot before them.

Nothing is decided and no sink gets a row: the slices are those of the manifests, and the deltas go to a branch of
their own, which is removed. The state that comes out is compared with the state that is there, key by key.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from uuid import uuid4

import pyarrow as pa
from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.engine.answers import Collected, collect
from epochal.engine.comparison import TableComparison, compare_states
from epochal.engine.job import EpochPlan
from epochal.engine.program import Program, assemble, check_continues
from epochal.engine.settings import ExecutionOrders
from epochal.engine.spark_runner import SparkRunner
from epochal.errors import InvalidInput
from epochal.pipeline.graph import Graph
from epochal.snapshots.chain import Chain
from epochal.snapshots.lineage import extend, history, read_chains
from epochal.snapshots.manifest import Manifest, SinkHandles
from epochal.snapshots.store import SnapshotStore

BRANCHES = "trial-"
"""How the branches of trials begin; what is found of them later was left by a trial that was killed."""


@dataclass(frozen=True)
class SinkComparison:
    """Rows that a sink got in these epochs, and would have got."""

    sink: str
    before: int
    after: int


class TrialReport(BaseModel):
    """``base``: the epoch whose snapshot the trial began from, ``None`` for the beginning; ``same``: no difference."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: int | None
    epochs: int
    seconds: float
    same: bool
    tables: tuple[TableComparison, ...]
    sinks: tuple[SinkComparison, ...]


def run_trial(
    orders: ExecutionOrders, graph: Graph, spark: SparkSession, head: ManifestReference, epochs: int
) -> TrialReport:
    """The last ``epochs`` epochs up to ``head`` again. ``orders`` are the other version's.

    Raises ``IncompatibleState``, ``InvalidInput`` when there are no such epochs, and what aborts an epoch.
    """
    started = time.monotonic()
    store = SnapshotStore(orders.store)
    told = list(islice(history(store, head), epochs))[::-1]
    if not told:
        raise InvalidInput("There is no committed epoch that could be tried again.")
    base = told[0].parent
    program = _counting(assemble(orders.model_copy(update={"shadow": True}), graph, spark, store))
    if base is not None:
        check_continues(store, base, orders, program.participants)
    branch = f"{BRANCHES}{uuid4().hex[:12]}"
    try:
        tried = _Trial(program, spark, branch, store, base)
        for manifest in told:
            tried.run(manifest)
        tables = compare_states(store, head, program.participants.tables, tried.chains)
    finally:
        for path in store.list(branch):
            store.delete(path)
    sinks = _compared_sinks(told, tried.rows)
    return TrialReport(
        same=all(table.same for table in tables) and all(sink.before == sink.after for sink in sinks),
        base=None if base is None else base.epoch,
        epochs=len(told),
        seconds=time.monotonic() - started,
        tables=tuple(tables),
        sinks=sinks,
    )


class _Trial:
    """Runs one epoch after the other on a branch that nobody decides."""

    def __init__(
        self, program: Program, spark: SparkSession, branch: str, store: SnapshotStore, base: ManifestReference | None
    ) -> None:
        self._program, self._branch = program, branch
        self._runner = SparkRunner(
            spark, program.graph, program.participants, program.plan.operators, program.orders.configuration
        )
        self._head = base
        self.chains: dict[str, Chain] = read_chains(store, base, [table.id for table in program.participants.tables])
        self.rows: dict[str, int] = dict.fromkeys(program.participants.sinks, 0)

    def run(self, told: Manifest) -> None:
        orders = self._program.orders
        key = EpochKey(self._branch, told.epoch)
        scope = EpochScope(orders.application, key, 1, self._head.key if self._head else None)
        slices = {name: slice for name, slice in told.slices.items() if name in self._program.participants.sources}
        plan = EpochPlan(scope, slices, dict(self.chains))
        collected = collect(
            self._runner.run(plan, orders.configuration.epoch_timeout_seconds),
            operators=list(self._program.participants.operators),
            sinks=list(self._program.participants.sinks),
            parallelism=orders.configuration.parallelism,
        )
        for name, handles in collected.sinks.items():
            self.rows[name] += sum(handle.rows for handle in handles)
        manifest = self._manifest(told, key, collected)
        self.chains = {table: extend(chain, table, manifest) for table, chain in self.chains.items()}
        self._head = ManifestReference(branch=key.branch, epoch=key.epoch, path="", sha256="")

    def _manifest(self, told: Manifest, key: EpochKey, collected: Collected) -> Manifest:
        """Never written: what a chain is extended with."""
        orders = self._program.orders
        handles = [handle for found in collected.operators.values() for handle in found]
        return Manifest(
            application=orders.application,
            branch=key.branch,
            epoch=key.epoch,
            parent=self._head,
            execution=orders.execution,
            attempt=1,
            artifact=orders.artifact,
            parallelism=orders.configuration.parallelism,
            max_parallelism=orders.configuration.max_parallelism,
            tables=self._program.participants.tables,
            deltas=tuple(delta for handle in handles for delta in self._runner.deltas(handle)),
            created_at=datetime.now(UTC),
        )


def _counting(program: Program) -> Program:
    sinks: dict[str, SinkBackend] = {node.name: CountingSink(node.name) for node in program.graph.sinks}
    return replace(program, participants=replace(program.participants, sinks=sinks))


def _compared_sinks(told: Sequence[Manifest], after: dict[str, int]) -> tuple[SinkComparison, ...]:
    before: dict[str, int] = {}
    for manifest in told:
        for name, sink in manifest.sinks.items():
            before[name] = before.get(name, 0) + _rows(sink)
    # A shadow application's epochs have no sinks to compare with.
    return tuple(SinkComparison(name, before[name], after.get(name, 0)) for name in sorted(before))


def _rows(sink: SinkHandles) -> int:
    return sum(handle.rows for handle in sink.handles)


class CountingSink(SinkBackend):
    """Takes rows and keeps their number."""

    def __init__(self, sink: str) -> None:
        self._sink = sink

    @property
    def kind(self) -> str:
        return "trial"

    @property
    def target(self) -> str:
        return "trial:"

    def check(self, schema: pa.Schema) -> None:
        """Anything can be counted."""

    def start(self, task: TaskScope) -> SinkTransaction:
        return _Count(task)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Nothing was written."""

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Nothing was written."""

    def recover(self, epoch: EpochScope) -> None:
        """Nobody else writes here."""

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return 0


class _Count(SinkTransaction):
    def __init__(self, task: TaskScope) -> None:
        self._task = task
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows

    def pre_commit(self) -> Handle:
        return Handle(owner=self._task.owner, subtask=self._task.subtask, rows=self._rows, bytes=0, payload={})

    def discard(self) -> None:
        self._rows = 0
