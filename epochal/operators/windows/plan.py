"""Operators over windows: their common base, and ``window(..).aggregate``.

For aggregates, Spark aggregates the rows of an epoch by key and pane, or session; the task merges these partials.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.aggregates import failed_columns
from epochal.aggregates.kept_merges import merges_of
from epochal.aggregates.plan import Aggregation, AggregationPlan, plan_aggregation
from epochal.contracts.stream_kind import ALL_BUT_CHANGES, APPEND, Accepted, StreamKind, upsert
from epochal.declarations.expressions import Expression, column, sql, to_column
from epochal.declarations.schemas import key_columns
from epochal.declarations.windows import WINDOW_END, WINDOW_TIME, Windowing
from epochal.errors import EpochalError
from epochal.operators.aggregate.plan import ROWS_THAT_STAY, check_aggregations, columns_of, costs, merged_columns
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input, Subtasks, placed, with_control, with_marks
from epochal.operators.windows import panes
from epochal.operators.windows.panes import check_names
from epochal.operators.windows.work import WINDOW
from epochal.state.table import Column
from epochal.state.type_names import quoted
from epochal.tasks.subtask_rows import MARK
from epochal.tasks.task_output import PassthroughColumn

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class WindowedOperator(Operator):
    """Base of operators over windows of the event time of their one input."""

    row_key: ClassVar[tuple[str, ...]] = ()
    """The columns that identify a row of a key and window, if there are several."""
    name: str
    keys: tuple[str, ...]
    event_time: str
    windowing: Windowing

    @property
    def takes(self) -> Accepted:
        """The kinds of stream that it accepts."""
        return ALL_BUT_CHANGES

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys, self.takes, event_time=self.event_time),)

    @property
    def hold(self) -> int:
        return self.windowing.hold

    @property
    def event_time_of_output(self) -> str | None:
        return WINDOW_TIME if self.windowing.emit == "final" else None

    def late_before(self, input: int, late: int) -> int | None:
        return panes.late_before(self.windowing, late)

    def gives(self, streams: Sequence[StreamKind]) -> StreamKind:
        if self.windowing.emit == "final":
            return APPEND
        return upsert((*self.keys, *panes.window_key(self.windowing), *self.row_key))

    def details(self) -> dict[str, Any]:
        return {"keys": list(self.keys), "event_time": self.event_time, **self.windowing.details()}


@dataclass(frozen=True)
class WindowedRowsPlan(OperatorPlan):
    """The plan of an operator that stores rows by pane; they arrive in any order.

    ``columns``: the columns of the task's input, those of the key in its spelling; ``time``: the further column that
    orders rows in state.
    """

    columns: tuple[str, ...]
    time: Expression

    @cached_property
    def carried(self) -> list[SparkColumn]:
        """The columns of the task's input. Created once: a column takes calls into the JVM."""
        return [*(to_column(column(name).alias(name)) for name in self.columns), to_column(self.time)]

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        return super().distributed([frames[0].select(*self.carried)], subtasks)


def window_time() -> SparkColumn:
    """The event time of a result, computed from the end of its window."""
    return to_column(sql(f"{WINDOW_END} - INTERVAL '0.000001' SECOND").alias(WINDOW_TIME))


def with_window_time(names: Sequence[str], place: int | None = None) -> dict[str, PassthroughColumn | None]:
    """The columns ``names`` of the task's rows, with :func:`window_time` at ``place``, by default the last."""
    columns = [(name, PassthroughColumn(name)) for name in names]
    columns.insert(len(columns) if place is None else place, (WINDOW_TIME, PassthroughColumn(WINDOW_END, earlier=1)))
    return dict(columns)


@dataclass(frozen=True)
class WindowedAggregate(WindowedOperator):
    """Base of aggregates per key and window, without a step per row."""

    aggregations: tuple[Aggregation, ...]
    queryable: bool
    over_updates: bool = False
    """True if to aggregate rows that replace earlier rows as independent rows."""

    @property
    def takes(self) -> Accepted:
        return ALL_BUT_CHANGES if self.over_updates else ROWS_THAT_STAY

    def computes_of(self, input: int) -> frozenset[str] | None:
        return columns_of(self.aggregations)

    def plan(self, frames: Sequence[DataFrame]) -> WindowedAggregatePlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        aggregation = plan_aggregation(self.name, key, self.aggregations, self.queryable, frame)
        partials = aggregation.table.model_copy(update={"merges": merges_of(aggregation.parts)})
        tables = panes.tables(self.windowing, partials)
        check_names(self.name, tables[0])
        columns = (*key, *WINDOW, *aggregation.table.value, *aggregation.computed)
        output = pa.schema([column.to_arrow() for column in columns])
        work = panes.merging_work(self.windowing, aggregation, tables)
        pane = panes.aggregated_by(self.windowing, self.event_time)
        bounds = panes.aggregated_bounds(self.windowing, self.event_time)
        return WindowedAggregatePlan(
            self.name, self.inputs, key, tables, work, output, aggregation, self.aggregations, pane, bounds
        )

    @property
    def computed_columns(self) -> Mapping[str, Any]:
        return {aggregation.name: aggregation.expression for aggregation in self.aggregations}

    def details(self) -> dict[str, Any]:
        columns = {aggregation.name: str(aggregation.expression) for aggregation in self.aggregations}
        said = {"over_updates": True} if self.over_updates else {}
        return {**super().details(), "columns": columns, **said}

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_aggregations(self.name, self.aggregations, frames[0])

    def warnings(self) -> Iterator[str]:
        return costs(self.name, self.aggregations)


@dataclass(frozen=True)
class WindowAggregateOperator(WindowedAggregate):
    """Tumbling, sliding and cumulative windows. State table: the operator's name, a row for each key and pane."""

    kind: ClassVar[str] = "window_aggregate"


@dataclass(frozen=True)
class WindowedAggregatePlan(OperatorPlan):
    """Shuffles rows by key, with the marks, if that sends every key to its subtask. Spark then needs no further shuffle
    for its aggregation by key and pane.

    If an epoch has far fewer keys and panes than rows, or with ``bounds``, Spark aggregates rows before and after a
    shuffle by key and pane, and what is left, far fewer rows, is shuffled to the subtasks. ``bounds``: aggregates that
    replace ``pane`` in the rows of the task.
    """

    aggregation: AggregationPlan
    aggregations: tuple[Aggregation, ...]
    pane: Expression
    bounds: tuple[Expression, ...] = ()

    @property
    def aggregated_columns(self) -> int:
        return len(self.aggregation.table.value)

    @cached_property
    def partials(self) -> list[SparkColumn]:
        """The columns that Spark aggregates over the epoch's rows. Created once: a column takes calls into the JVM."""
        return self.aggregation.partial_columns()

    @cached_property
    def pane_and_bounds(self) -> tuple[SparkColumn, list[SparkColumn]]:
        """The grouping column and the aggregates that replace it. Created once, as ``partials``."""
        return to_column(self.pane), list(map(to_column, self.bounds))

    @cached_property
    def finishing(self) -> tuple[list[SparkColumn], ...]:
        values, columns = self.aggregation.by((*self.key, *WINDOW)).finishing()
        first = len(self.key) + len(WINDOW)
        return values, [*columns[:first], window_time(), *columns[first:]]

    @property
    def columns_of_task(self) -> Mapping[str, PassthroughColumn | None]:
        windows = with_window_time([column.name for column in (*self.key, *WINDOW)])
        return windows | merged_columns(self.aggregation)

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        (frame,), keys = frames, self.inputs[0].keys
        if subtasks.match_spark_shuffle and not subtasks.combined and not self.bounds:
            by_key = [MARK, *map(quoted, keys)]
            shuffled = with_marks(frame, subtasks).repartition(subtasks.parallelism, *by_key)
            return self._aggregated(shuffled, by_key, subtasks.control(keys))
        grouped = with_marks(self._aggregated(frame, list(map(quoted, keys))), subtasks)
        return placed(with_control(grouped, keys, subtasks), subtasks)

    def _aggregated(self, frame: DataFrame, key: list[str], beside: Sequence[SparkColumn] = ()) -> DataFrame:
        pane, bounds = self.pane_and_bounds
        aggregated = frame.groupBy(*key, pane).agg(*self.partials, *bounds, *beside)
        return aggregated.drop(panes.BUCKET) if self.bounds else aggregated

    def located(self, frames: Sequence[DataFrame]) -> EpochalError | None:
        name = "_pane"
        by_pane = self.aggregation.by((*self.key, Column(name=name, type="timestamp")))
        frame = frames[0].withColumn(name, to_column(self.pane))
        return failed_columns.located(by_pane, self.aggregations, self.partials, frame)


@dataclass(frozen=True)
class SessionAggregateOperator(WindowedAggregate):
    """Session windows. State tables: the operator's name, with the open sessions of each key; ``name.entries``, the
    times at which to check a key.

    A row is late if a session of this row alone has closed, as in Spark's ``session_window``: if it is older than the
    watermark by more than the gap and the allowed lateness.
    """

    kind: ClassVar[str] = "session_aggregate"
