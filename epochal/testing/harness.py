"""Tests of pipelines without a service: a test supplies rows epoch by epoch, and reads outputs and state.

The engine is the real one (analysis, coordinator, tasks, state backend, snapshots, upgrades), on a local Spark. Sources
and sinks are replaced::

    from epochal.testing import Harness

    with Harness(pipeline) as test:
        outputs = test.epoch(flights=[{"origin": "JFK", "delay": 12}])
        assert outputs["out"].to_pylist() == [{"origin": "JFK", "flights": 1}]
        assert test.state("delays").to_pylist() == [{"origin": "JFK", "flights": 1}]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from epochal.contracts.catalog import Directive, EpochCounts, QueryCommand
from epochal.contracts.conditions import NO_WATERMARKS, Trigger, as_datetime
from epochal.contracts.configuration import Acceptance, Configuration
from epochal.contracts.source import Slice, SliceLimits
from epochal.engine.session import create_session, derived_session, temporary_folder
from epochal.engine.triggers import Step, decide
from epochal.errors import InvalidInput
from epochal.operators.standing_queries.plan import StandingQueriesOperator, StandingQueriesPlan
from epochal.pipeline.description import GraphDescription
from epochal.pipeline.entry_verbs import entries_of
from epochal.pipeline.graph import Graph
from epochal.pipeline.pipeline import Pipeline
from epochal.snapshots.in_flight import under_way
from epochal.standing_queries.binding import bound
from epochal.state.table import StateTable
from epochal.testing.harness_engine import HarnessEngine, LateRows, Upgrade, situation_of
from epochal.testing.in_memory import InMemorySource, InputRows, Schema, frame_of

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The default time of the clock of a test."""
_USUAL: Final = Configuration(state_backend="heap", epoch_interval_seconds=0)
_MOST_EPOCHS: Final = 1000


class Harness:
    """Runs one pipeline in this process, after the checks of ``epochal check``, ``run`` and ``submit``.

    ``spark``: the Spark session to use; the default is the running session, or a new local one. Epochs run in a
    separate session (:attr:`spark`) with the settings of a driver, such as the time zone UTC; the given session is not
    changed. ``now`` returns the time of each epoch. Without it the clock is ``START`` until :meth:`advance` or ``at=``
    moves it. ``schemas``: the columns, as DDL, of sources whose columns are unavailable here. ``tables``: rows for
    static tables, which are then not read. Sources and sinks are never connected.

    Raises ``PipelineError``, ``SchemaError``, ``SinkError``, ``SourceError``, like ``submit``.
    """

    def __init__(
        self,
        pipeline: Pipeline | Graph,
        spark: SparkSession | None = None,
        configuration: Configuration | None = None,
        now: Callable[[], datetime] | None = None,
        *,
        schemas: Mapping[str, Schema] | None = None,
        tables: Mapping[str, InputRows] | None = None,
    ) -> None:
        chosen = configuration or _USUAL
        self._now = now or (lambda: START)
        self._schemas, self._tables = dict(schemas or {}), dict(tables or {})
        running = spark or SparkSession.getActiveSession() or create_session("test", chosen)
        self._spark = derived_session(running, chosen)
        self._late: list[Mapping[str, int]] = []
        self._asked = 0
        self._resources = ExitStack()
        folder = self._resources.enter_context(temporary_folder("test"))
        try:
            self._engine = HarnessEngine(self._spark, str(folder), lambda: self._now())
            self._engine.begin(self._engine.version(_graph(pipeline), chosen, self._schemas, self._tables))
        except BaseException:
            self.close()
            raise

    @classmethod
    def check(
        cls,
        pipeline: Pipeline | Graph,
        spark: SparkSession | None = None,
        configuration: Configuration | None = None,
        *,
        schemas: Mapping[str, Schema] | None = None,
        tables: Mapping[str, InputRows] | None = None,
    ) -> GraphDescription:
        """Validate a pipeline without running it, and without access to its sources and sinks.

        The description has the columns of all streams, the state tables, warnings and notes. Raises the errors of the
        class.
        """
        with cls(pipeline, spark, configuration, schemas=schemas, tables=tables) as test:
            return test.description

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove all written files. Spark continues to run."""
        self._resources.close()

    @property
    def spark(self) -> SparkSession:
        """The session of the epochs. A DataFrame of another session is copied into it."""
        return self._spark

    @property
    def description(self) -> GraphDescription:
        """The description that ``epochal check`` prints: columns, state tables, warnings, notes."""
        return self._engine.current.analysis.description

    @property
    def store(self) -> str:
        """The URL of the snapshot store, for ``epochal.read_state``."""
        return self._engine.store.url

    @property
    def clock(self) -> datetime:
        """The time of the next epoch."""
        return self._now()

    def restart(self, parallelism: int | None = None, parallelisms: Mapping[str, int] | None = None) -> None:
        """Begin a new attempt, as after a crash: recover from the latest prepared snapshot.

        ``parallelism``: the new number of subtasks, as after a rescale; ``parallelisms``: those of single operators.
        By default the numbers do not change. Raises ``IncompatibleState`` if the state cannot be reduced to a number,
        ``PipelineError`` for an unknown operator.
        """
        version = self._engine.current
        numbers = {"parallelism": parallelism, "parallelisms": parallelisms}
        changes = {name: number for name, number in numbers.items() if number is not None}
        if changes:
            stored = version.configuration.model_dump()
            version = replace(version, configuration=Configuration.model_validate({**stored, **changes}))
        self._engine.begin(version)

    def upgrade(
        self,
        pipeline: Pipeline | Graph,
        *,
        configuration: Configuration | None = None,
        allow_dropped_state: Collection[str] = (),
        accept_changed: Collection[str] = (),
        accept_partial: Collection[str] = (),
        schemas: Mapping[str, Schema] | None = None,
        tables: Mapping[str, InputRows] | None = None,
    ) -> Upgrade:
        """Continue with another version of the pipeline from the state of the last epoch, like ``epochal upgrade``.

        Runs the first epoch of the version without new rows. ``allow_dropped_state``: state tables and columns that the
        upgrade may drop. ``accept_changed``, ``accept_partial``: accepted differences, by name. ``configuration``,
        ``schemas`` and ``tables`` are unchanged by default.

        Raises the errors of the class, ``IncompatibleState`` if ``epochal upgrade`` would refuse the version, and the
        errors of its first epoch; the previous version then continues.
        """
        self._check_goes_on()
        graph, before = _graph(pipeline), self._engine.current
        static = {node.name for node in graph.static_tables}
        named = static | {node.name for node in graph.sources}
        columns = _still(self._schemas, named) | dict(schemas or {})
        rows = _still(self._tables, static) | dict(tables or {})
        chosen = configuration or before.configuration
        version = self._engine.version(graph, chosen, columns, rows, before)
        allowed = chosen.model_copy(update={"allow_dropped_state": tuple(allow_dropped_state)})
        accepted = Acceptance(changed=tuple(accept_changed), partial=tuple(accept_partial))
        upgraded = self._engine.upgrade(version, allowed, accepted, lambda: self._run_epoch({}, ("command",)))
        self._schemas, self._tables = columns, rows
        return upgraded

    def epoch(self, *, at: datetime | None = None, retried: bool = False, **inputs: InputRows) -> dict[str, pa.Table]:
        """Run one epoch over rows by source, commit it, and return the output by sink.

        Rows are a DataFrame, dicts, or tuples in the order of the source's columns. ``at``: the epoch time, with
        a time zone, which is also the new time of the clock. ``retried``: abort the epoch when all of its tasks have
        ended, and run it again; raises ``AssertionError`` if sinks or state differ between the runs.

        Raises the error that aborted the epoch, and ``InvalidInput`` after :meth:`drain`. Rows of an aborted epoch are
        processed by the next epoch, as with any source.
        """
        self._check_goes_on()
        if at is not None:
            self._set_clock(at)
        frames = {name: self._frame(name, rows) for name, rows in inputs.items()}
        for name, frame in frames.items():
            rows = inputs[name]
            self._source(name).give(frame, None if isinstance(rows, DataFrame) else len(rows))
        return self._run(retried)

    def call(self, entry: str, **arguments: Any) -> Any:
        """Call an entry, like a client: run an epoch with the call, and return its value.

        Returns ``None`` if the call was not answered in that epoch, or has no value. Raises ``InvalidInput`` with the
        error of the answer, and for an unknown entry.
        """
        self._check_goes_on()
        declared = {each.name: each for each in entries_of(self._engine.current.graph)}
        if entry not in declared:
            raise InvalidInput(f"There is no entry {entry!r}; entries are: {', '.join(declared) or 'none'}.")
        (id,) = self._engine.calls.add(entry, [arguments])
        self._run()
        answers = self.state(declared[entry].table).to_pylist()
        answer = next((row for row in answers if row["request_id"] == id), None)
        if answer is None:
            return None
        if answer["error"] is not None:
            raise InvalidInput(f"Entry {entry!r}: {answer['error']}")
        return None if answer["value"] is None else json.loads(answer["value"])

    def ask(self, operator: str, query: str) -> int:
        """Add a standing query, like ``epochal query add``, from the next epoch on. Returns its id.

        Raises ``InvalidInput`` if ``operator`` does not accept queries, ``QueryRefused``.
        """
        version = self._engine.current
        node = next((node.operator for node in version.graph.operators if node.name == operator), None)
        plan = version.plan.operators.get(operator)
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
        self._engine.coordinator.queries.take(directive)
        return self._asked

    def advance(
        self, *, clock: datetime | timedelta | None = None, watermark: datetime | None = None
    ) -> dict[str, pa.Table]:
        """Advance time without rows, and return the output by sink.

        ``clock``: the new time of the clock, with a time zone, or the duration to add. Due timers in processing time
        fire, epoch by epoch, including due timers that these timers set. ``watermark``: run one epoch in which the
        watermarks of all declarations have reached this time (with a time zone); windows, timers and waiting rows
        fire. The watermarks of operators after a hold are lower. Neither clock nor watermarks can go back.
        """
        self._check_goes_on()
        if clock is None and watermark is None:
            raise InvalidInput("advance() requires clock=.. or watermark=..")
        if clock is not None:
            time = self.clock + clock if isinstance(clock, timedelta) else clock
            self._set_clock(time, not_before=self.clock)
        if watermark is not None:
            time = _with_zone("watermark", watermark)
            if self._engine.coordinator.position.snapshot is None:
                self._run()
            self._engine.advance_watermarks(time)
        shown = [self._run()]
        while clock is not None and self._engine.coordinator.until_due == 0:
            if len(shown) == _MOST_EPOCHS:
                raise InvalidInput(f"After {_MOST_EPOCHS} epochs timers are still due at {self.clock}.")
            shown.append(self._run())
        return {name: pa.concat_tables([each[name] for each in shown]) for name in shown[0]}

    def drain(self, *, at: datetime | None = None) -> dict[str, pa.Table]:
        """End the input: run the last epoch, as when all sources are bounded and have ended, and return its output.

        All windows close, rows that wait for a match are output, timers in event time fire. Timers that these set, and
        timers in processing time, are dropped (``counts.dropped_timers``). State can be read afterwards, but no epoch
        can follow. ``at`` as in :meth:`epoch`.
        """
        self._check_goes_on()
        if at is not None:
            self._set_clock(at)
        if held := self.in_flight:
            raise InvalidInput(f"Records are in flight in {', '.join(sorted(held))}. Call settle() first.")
        return self._run_epoch({}, ("drain",))

    @property
    def in_flight(self) -> dict[str, int]:
        """The number of records in flight, by loop. Empty loops are left out, except for an aligned loop that has just
        converged, which the next epoch processes."""
        position = self._engine.coordinator.position
        names = under_way(self._engine.program.participants.sources, position.snapshot)
        return {} if position.snapshot is None else {name: position.snapshot.loops[name].rows for name in names}

    def settle(self, most: int = _MOST_EPOCHS) -> list[dict[str, pa.Table]]:
        """Run epochs without input until no records are in flight in any loop. Returns the output of each epoch.

        Raises ``InvalidInput`` if records are still in flight after ``most`` epochs.
        """
        shown: list[dict[str, pa.Table]] = []
        while self.in_flight:
            if len(shown) == most:
                raise InvalidInput(f"After {most} epochs records are still in flight: {self.in_flight}.")
            shown.append(self._run())
        return shown

    def watermark(self, name: str) -> datetime | None:
        """The watermark of an operator or a declaration of event time (by name) in the last epoch: everything that
        waited for this or an earlier time has fired. UTC; ``None``: no watermark yet, or the input has ended."""
        places = [place.name for place in self._engine.current.plan.time.graph.places]
        if name not in places:
            raise InvalidInput(f"{name!r} has no watermark; watermarks exist for: {', '.join(places) or 'none'}.")
        snapshot = self._engine.coordinator.position.snapshot
        return None if snapshot is None else as_datetime(snapshot.clock.places.get(name, NO_WATERMARKS).fire)

    @property
    def counts(self) -> EpochCounts:
        """The numbers of rows that the last epoch read, wrote, rejected and found late."""
        snapshot = self._engine.coordinator.position.snapshot
        return EpochCounts() if snapshot is None else snapshot.counts

    @property
    def late(self) -> LateRows:
        """The late rows of all epochs: ``late.total``, ``late.by_operator``, ``late.by_epoch``."""
        return LateRows(tuple(self._late))

    @property
    def state_tables(self) -> tuple[StateTable, ...]:
        """The declared state tables."""
        return tuple(self._engine.program.participants.tables)

    def state(self, table: str) -> pa.Table:
        """All rows of a state table (by its id) after the last epoch: key and value columns, in undefined order."""
        declared = {item.id: item for item in self.state_tables}
        if table not in declared:
            raise InvalidInput(f"There is no state table {table!r}; state tables are: {', '.join(declared)}.")
        if not declared[table].durable:
            raise InvalidInput(f"State {table!r} {declared[table].unreadable}.")
        return self._engine.state(declared[table], self._engine.coordinator.position.chains[table])

    def _run(self, retried: bool = False) -> dict[str, pa.Table]:
        coordinator = self._engine.coordinator
        slices = coordinator.plan_slices(SliceLimits(None))
        situation = situation_of(coordinator, slices)
        decision = decide(situation)
        if decision.step is not Step.OPEN:
            decision = decide(replace(situation, commanded=True))
        first = self._engine.abort_at_decision(slices, decision.opened_for) if retried else None
        outputs = self._run_epoch(slices, decision.opened_for)
        if first is not None:
            self._engine.check_same(first)
        return outputs

    def _run_epoch(self, slices: Mapping[str, Slice], opened_for: Sequence[Trigger]) -> dict[str, pa.Table]:
        manifest = self._engine.run(slices, opened_for)
        self._late.append(dict(manifest.counts.late_rows))
        return self._engine.outputs(manifest.key)

    def _set_clock(self, time: datetime, not_before: datetime | None = None) -> None:
        at = _with_zone("the time of the clock", time)
        if not_before is not None and at < not_before:
            raise InvalidInput(f"The clock is at {not_before} and cannot move back to {at}.")
        self._now = lambda: at

    def _check_goes_on(self) -> None:
        if self._engine.coordinator.drained:
            raise InvalidInput("The input has ended (drain): no epoch can follow. Create a new Harness.")

    def _source(self, name: str) -> InMemorySource:
        sources = self._engine.current.sources
        found = {known: each for known, each in sources.items() if isinstance(each, InMemorySource)}
        if name not in found:
            raise InvalidInput(f"There is no source {name!r}; sources are: {', '.join(found)}.")
        return found[name]

    def _frame(self, name: str, rows: InputRows) -> DataFrame:
        schema = self._source(name).schema(self._spark)
        return frame_of(f"source {name!r}", rows, schema, self._spark)


def _graph(pipeline: Pipeline | Graph) -> Graph:
    return pipeline if isinstance(pipeline, Graph) else pipeline.graph()


def _still(declared: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: each for name, each in declared.items() if name in names}


def _with_zone(what: str, time: datetime) -> datetime:
    if time.tzinfo is None:
        raise InvalidInput(f"{what}, {time}, has no time zone: datetime(.., tzinfo=UTC).")
    return time
