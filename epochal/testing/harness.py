"""Test a pipeline without any service: rows in, epoch by epoch; outputs and state back.

The engine is the real one (coordinator, tasks, state backend, snapshots), on a local Spark; sources and sinks are the
test's own::

    from epochal.testing import Harness

    with Harness(pipeline) as test:
        outputs = test.epoch(flights=[{"origin": "JFK", "delay": 12}])
        assert outputs["out"].to_pylist() == [{"origin": "JFK", "flights": 1}]
        assert test.state("delays").to_pylist() == [{"origin": "JFK", "flights": 1}]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from epochal.contracts.catalog import Directive, EpochCounts, QueryCommand
from epochal.contracts.conditions import NO_WATERMARKS, Trigger, as_datetime, microseconds
from epochal.contracts.identity import EpochScope
from epochal.contracts.source import Slice, SliceLimits
from epochal.engine.assembly import spark_program
from epochal.engine.bases import PendingBases
from epochal.engine.commits import CommitQueue, drain
from epochal.engine.compaction import Compaction
from epochal.engine.coordinator import Coordinator
from epochal.engine.pipeline_plan import plan_pipeline
from epochal.engine.program import CurrentProgram, Program
from epochal.engine.recovery import Recovery
from epochal.engine.retention import Retention
from epochal.engine.session import create_session
from epochal.engine.settings import Configuration, ExecutionOrders
from epochal.engine.triggers import Step, decide
from epochal.errors import InvalidInput, SinkError
from epochal.operators.standing_queries import StandingQueriesOperator, StandingQueriesPlan
from epochal.pipeline.graph import Graph
from epochal.pipeline.pipeline import Pipeline
from epochal.snapshots.base import merged
from epochal.snapshots.internal_source import under_way
from epochal.snapshots.store import SnapshotStore
from epochal.standing.binding import bound
from epochal.state.table import StateTable
from epochal.state.watermarks import observed
from epochal.testing.in_memory import CapturingSink, InMemorySource
from epochal.testing.local_attempt import CLOCK, situation_of
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState

InputRows = DataFrame | Sequence[Mapping[str, Any]] | Sequence[tuple[Any, ...]]


class Harness:
    """Runs one pipeline in this process. ``spark`` None: a local session is made (or the running one taken).

    ``now``: the time that epochs are opened at, in UTC; without it, the clock's.
    """

    def __init__(
        self,
        pipeline: Pipeline | Graph,
        spark: SparkSession | None = None,
        configuration: Configuration | None = None,
        now: Callable[[], datetime] = CLOCK,
    ) -> None:
        self._graph = pipeline if isinstance(pipeline, Graph) else pipeline.graph()
        self._now = now
        self._configuration = configuration or Configuration(state_backend="heap", epoch_interval_seconds=0)
        self._spark = spark or SparkSession.getActiveSession() or create_session("test", self._configuration)
        self._folder = tempfile.TemporaryDirectory(prefix="epochal-test-")
        self._store = SnapshotStore(f"{self._folder.name}/store")
        self._catalog = MemoryCatalogState()
        self._sources = {
            node.name: InMemorySource(node.name, node.make().schema(self._spark)) for node in self._graph.sources
        }
        self._sinks = {node.name: CapturingSink(node.name, self._folder.name) for node in self._graph.sinks}
        self._plan = plan_pipeline(self._graph, self._spark, self._sources)
        self._asked = 0
        self.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything that was written. Spark goes on running."""
        self._folder.cleanup()

    def restart(self, parallelism: int | None = None) -> None:
        """Begin a new attempt, as after a crash: recover from the latest prepared snapshot.

        ``parallelism``: with another number of subtasks from here on, as after a rescale.
        """
        if parallelism is not None:
            self._configuration = self._configuration.model_copy(update={"parallelism": parallelism})
        attempt = self._catalog.attempt + 1
        orders = ExecutionOrders(
            application="test",
            execution="test",
            attempt=attempt,
            artifact="test",
            configuration=self._configuration,
            store=self._store.url,
            cache_directory=f"{self._folder.name}/cache",
        )
        program = self._program(orders)
        catalog, current = MemoryCatalog(self._catalog, attempt), CurrentProgram(program)
        self._commits = CommitQueue(catalog, current)
        recovery = Recovery(program, catalog, self._store, self._commits, _no_pause, lambda waiting: None)
        position = recovery.run()
        bases = PendingBases()
        self._coordinator = Coordinator(
            current, catalog, self._store, self._commits, position, bases, now=lambda: self._now()
        )
        compaction = Compaction(self._store, position, bases, current)
        self._commits.retain = Retention(self._store, current, compaction, self._coordinator.aborted)

    def _program(self, orders: ExecutionOrders) -> Program:
        return spark_program(orders, self._graph, self._plan, self._spark, self._store, self._sources, self._sinks)

    def epoch(self, *, at: datetime | None = None, **inputs: InputRows) -> dict[str, pa.Table]:
        """Run one epoch over these rows by source, commit it, and return what each sink shows of it.

        Rows are a DataFrame, dicts, or tuples in the order of the source's columns. ``at``, with a time zone: the epoch
        time, at which the clock then stands still until another is given. Raises what aborted the epoch, and
        ``InvalidInput`` after :meth:`drain`.
        """
        self._check_goes_on()
        if at is not None:
            self._now = lambda: at
        for name, rows in inputs.items():
            if name not in self._sources:
                raise InvalidInput(f"There is no source {name!r}; sources are: {', '.join(self._sources)}.")
            self._sources[name].give(self._frame(name, rows))
        return self._run()

    def ask(self, operator: str, query: str) -> int:
        """Add a standing query, as ``epochal query add`` does; the next epoch begins to answer it. Gives its id.

        Raises ``InvalidInput`` where ``operator`` takes no queries, ``QueryRefused``.
        """
        node = next((node.operator for node in self._graph.operators if node.name == operator), None)
        plan = self._plan.operators.get(operator)
        if not isinstance(node, StandingQueriesOperator) or not isinstance(plan, StandingQueriesPlan):
            raise InvalidInput(f"{operator!r} has no standing queries.")
        self._asked += 1
        command = QueryCommand(
            number=self._asked,
            kind="add",
            query=self._asked,
            by="test",
            operator=operator,
            text=query,
            bound=bound(query, plan.columns, node.limits).json,
        )
        directive = Directive(id=f"query-{self._asked}", kind="query", arguments=command.model_dump())
        self._coordinator.queries.take(directive)
        return self._asked

    def advance(self, *, watermark: datetime) -> dict[str, pa.Table]:
        """Run an epoch without rows whose watermarks have reached this time, with a time zone, in every declaration.

        As if rows so late had been seen that all earlier ones have come; what waits for it fires. Operators are so much
        behind as others hold their rows back. Watermarks never fall.
        """
        self._check_goes_on()
        position, graph = self._coordinator.position, self._plan.time.graph
        if position.snapshot is None or position.snapshot.conditions is None:
            self._run()
        snapshot, time = position.snapshot, microseconds(watermark)
        if snapshot is None or snapshot.conditions is None:
            raise InvalidInput("There is no snapshot whose watermarks could advance.")
        latest = {
            declaration.name: dict.fromkeys(snapshot.clock.partitions[declaration.name], time + declaration.delay)
            for declaration in graph.declarations
        }
        seen = snapshot.conditions.seen(observed(graph, snapshot.clock, latest))
        position.snapshot = snapshot.model_copy(update={"conditions": seen})
        return self._run()

    def drain(self, *, at: datetime | None = None) -> dict[str, pa.Table]:
        """End the input: run the last epoch, as when all sources are bounded and at their end, and return its output.

        All windows close, rows that wait for a partner come out, timers in event time fire; what timers set then, and
        timers in processing time, are dropped (``counts.dropped_timers``). State can be read afterwards; no epoch can
        follow. ``at`` as for :meth:`epoch`.
        """
        self._check_goes_on()
        if at is not None:
            self._now = lambda: at
        if held := self.in_flight:
            raise InvalidInput(f"There are records in flight in {', '.join(sorted(held))}: call settle() first.")
        return self._run_epoch({}, ("drain",))

    @property
    def in_flight(self) -> dict[str, int]:
        """By loop how many records are in flight; loops without any are left out, but for one in rounds that has just
        come to rest, which the next epoch is told."""
        position = self._coordinator.position
        names = under_way(self._coordinator.current.program.participants.sources, position.snapshot)
        return {} if position.snapshot is None else {name: position.snapshot.loops[name].rows for name in names}

    def settle(self, most: int = 1000) -> list[dict[str, pa.Table]]:
        """Run epochs without input until no records are in flight in any loop; what sinks show, epoch by epoch.

        Raises ``InvalidInput`` where after ``most`` epochs there still are some.
        """
        shown: list[dict[str, pa.Table]] = []
        while self.in_flight:
            if len(shown) == most:
                raise InvalidInput(f"After {most} epochs there still are records in flight: {self.in_flight}.")
            shown.append(self._run())
        return shown

    def watermark(self, name: str) -> datetime | None:
        """How far an operator or a declaration of event time (by its name) was in the last epoch: all that waited for
        this time or an earlier one has fired. UTC; ``None``: it had seen nothing yet, or is past all times."""
        places = [place.name for place in self._plan.time.graph.places]
        if name not in places:
            raise InvalidInput(f"{name!r} has no watermark; those that have: {', '.join(places) or 'none'}.")
        snapshot = self._coordinator.position.snapshot
        return None if snapshot is None else as_datetime(snapshot.clock.places.get(name, NO_WATERMARKS).fire)

    @property
    def counts(self) -> EpochCounts:
        """What the last epoch read, wrote, rejected and found late."""
        snapshot = self._coordinator.position.snapshot
        return EpochCounts() if snapshot is None else snapshot.counts

    def _run(self) -> dict[str, pa.Table]:
        slices = self._coordinator.plan_slices(SliceLimits(None))
        situation = situation_of(self._coordinator, slices)
        decision = decide(situation)
        if decision.step is not Step.OPEN:
            decision = decide(replace(situation, commanded=True))
        return self._run_epoch(slices, decision.opened_for)

    def _run_epoch(self, slices: Mapping[str, Slice], opened_for: Sequence[Trigger]) -> dict[str, pa.Table]:
        manifest = self._coordinator.run_epoch(slices, opened_for)
        drain(self._commits, _no_pause, lambda waiting: None)
        scope = EpochScope("test", manifest.key, manifest.attempt, None)
        return {name: sink.rows(scope, self._plan.sinks[name]) for name, sink in self._sinks.items()}

    @property
    def state_tables(self) -> tuple[StateTable, ...]:
        """The declared state tables."""
        return tuple(self._plan.tables)

    def state(self, table: str) -> pa.Table:
        """All rows of a state table after the last epoch, by its id: key columns and value columns, in no order."""
        declared = {item.id: item for item in self._plan.tables}
        if table not in declared:
            raise InvalidInput(f"There is no state table {table!r}; state tables are: {', '.join(declared)}.")
        if not declared[table].durable:
            raise InvalidInput(f"State {table!r} {declared[table].unreadable}.")
        chain = self._coordinator.position.chains[table]
        rows = merged(self._store, declared[table], chain, 0, self._configuration.max_parallelism - 1)
        return rows.drop_columns(["_kg"])

    def _check_goes_on(self) -> None:
        if self._coordinator.drained:
            raise InvalidInput("The input has ended (drain): no epoch can follow. Make another Harness to begin anew.")

    def _frame(self, name: str, rows: InputRows) -> DataFrame:
        if isinstance(rows, DataFrame):
            return rows
        schema = self._sources[name].schema(self._spark)
        values = [tuple(row.get(c) for c in schema.names) if isinstance(row, Mapping) else row for row in rows]
        return self._spark.createDataFrame(values, schema)


def _no_pause(seconds: float) -> None:
    raise SinkError("a sink of the test cannot commit")
