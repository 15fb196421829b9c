"""What the operators over windows share: the columns that say of which window a row is, and state by pane."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from epochal.aggregates import overflow
from epochal.aggregates.plan import Aggregation, AggregationPlan, plan_aggregation
from epochal.contracts.stream_kind import ALL_BUT_CHANGES
from epochal.declarations.expressions import Expression, sql, to_column
from epochal.declarations.keys import key_columns
from epochal.declarations.windowing import WINDOW_END, WINDOW_START, WINDOW_TIME, Windowing
from epochal.declarations.windows import FixedGrid, GridWindows
from epochal.errors import EpochalError, PipelineError
from epochal.operators.aggregate import ROWS_THAT_STAY, check_aggregations, costs
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input, Subtasks, placed, with_control, with_marks
from epochal.state.expiry import Expiry
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import quoted
from epochal.tasks.calls import MARK
from epochal.tasks.operator import Work

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

WINDOW: Final = (Column(name=WINDOW_START, type="timestamp"), Column(name=WINDOW_END, type="timestamp"))
_PANE_START, _LAST_WINDOW_END = "pane_start", "last_window_end"


@dataclass(frozen=True)
class WindowedAggregate(Operator):
    """Aggregates per key and window. Spark aggregates the epoch's rows by key and pane, the task merges these partials.

    No step is taken per row. A subclass says what a pane is, and what becomes of its partials.
    """

    name: str
    keys: tuple[str, ...]
    event_time: str
    windowing: Windowing
    aggregations: tuple[Aggregation, ...]
    queryable: bool
    over_updates: bool = False
    """Whether rows that replace earlier ones are to be aggregated as if each stood for itself."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        takes = ALL_BUT_CHANGES if self.over_updates else ROWS_THAT_STAY
        return (Input("rows", Distribution.BY_KEY, self.keys, takes, event_time=self.event_time),)

    @property
    def hold(self) -> int:
        return self.windowing.allowed_lateness

    @property
    def event_time_of_output(self) -> str | None:
        return WINDOW_TIME if self.windowing.emit == "final" else None

    @abstractmethod
    def state(self, partials: StateTable) -> tuple[StateTable, ...]:
        """Its state tables; ``partials`` says what is kept of each pane."""

    @abstractmethod
    def work(self, aggregation: AggregationPlan, tables: tuple[StateTable, ...]) -> Work:
        """What becomes of the partials, in a task."""

    @abstractmethod
    def pane(self) -> Expression:
        """The start of the pane of a row, under the name that :meth:`work` knows."""

    def plan(self, frames: Sequence[DataFrame]) -> WindowedAggregatePlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        aggregation = plan_aggregation(self.name, key, self.aggregations, self.queryable, frame)
        tables = self.state(aggregation.table)
        check_names(self.name, tables[0])
        columns = (*key, *WINDOW, *aggregation.table.value, *aggregation.computed)
        output = pa.schema([column.to_arrow() for column in columns])
        work = self.work(aggregation, tables)
        return WindowedAggregatePlan(
            self.name, self.inputs, key, tables, work, output, aggregation, self.aggregations, self.pane()
        )

    def details(self) -> dict[str, Any]:
        columns = {aggregation.name: str(aggregation.expression) for aggregation in self.aggregations}
        said = {"over_updates": True} if self.over_updates else {}
        time = {"event_time": self.event_time, **self.windowing.details()}
        return {"keys": list(self.keys), **time, "columns": columns, **said}

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_aggregations(self.name, self.aggregations, frames[0])

    def warnings(self) -> Iterator[str]:
        return costs(self.name, self.aggregations)


@dataclass(frozen=True)
class WindowedAggregatePlan(OperatorPlan):
    """Rows are shuffled by key, with the marks, where that puts every key on its subtask; Spark sees then by itself
    that its aggregation by key and pane needs no further shuffle."""

    aggregation: AggregationPlan
    aggregations: tuple[Aggregation, ...]
    pane: Expression

    @cached_property
    def partials(self) -> list[SparkColumn]:
        """What Spark aggregates over the epoch's rows; made once, as every column costs calls into the JVM."""
        return self.aggregation.partial_columns()

    @cached_property
    def finishing(self) -> tuple[list[SparkColumn], ...]:
        values, columns = self.aggregation.by((*self.key, *WINDOW)).finishing()
        first = len(self.key) + len(WINDOW)
        return values, [*columns[:first], window_time(), *columns[first:]]

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        (frame,), keys, pane = frames, self.inputs[0].keys, to_column(self.pane)
        if subtasks.ride_spark_shuffle:
            by_key = [*map(quoted, keys), MARK]
            shuffled = with_marks(frame, subtasks).repartition(subtasks.parallelism, *by_key)
            return with_control(shuffled.groupBy(*by_key, pane).agg(*self.partials), keys, subtasks)
        grouped = with_marks(frame.groupBy(*map(quoted, keys), pane).agg(*self.partials), subtasks)
        return placed(with_control(grouped, keys, subtasks), subtasks)

    def located(self, frames: Sequence[DataFrame]) -> EpochalError | None:
        name = "_pane"
        by_pane = self.aggregation.by((*self.key, Column(name=name, type="timestamp")))
        frame = frames[0].withColumn(name, to_column(self.pane))
        return overflow.located(by_pane, self.aggregations, self.partials, frame)


def window_time() -> SparkColumn:
    """The event time of a result, from its window's end."""
    return to_column(sql(f"{WINDOW_END} - INTERVAL '0.000001' SECOND").alias(WINDOW_TIME))


def pane_table(table: StateTable, windows: GridWindows, windowing: Windowing) -> StateTable:
    """The state table of an operator whose rows are kept by key and pane. ``table``: what it keeps of each.

    A pane that is a window, as those of tumbling windows are, is known by the window's start.
    """
    time = Column(name=pane_name(windows), type="timestamp")
    value, lateness = table.value, windowing.allowed_lateness
    if isinstance(windows.grid, FixedGrid):
        # Panes of windows that do not begin with each of them stay a little longer than they must.
        expires = Expiry(clock="event", column=time.name, after=windows.panes * windows.grid.pane + lateness)
    else:
        ends = Column(name=WINDOW_END if windows.one_per_row else _LAST_WINDOW_END, type="timestamp")
        value = (*value, ends)
        expires = Expiry(clock="event", column=ends.name, after=lateness)
    return StateTable(
        id=table.id,
        operator=table.operator,
        kind=table.kind,
        key=table.key,
        sub_key=table.sub_key,
        time=time,
        value=value,
        shown=table.shown,
        queryable=table.queryable,
        expires=expires,
        windows=windowing.state_details(),
    )


def session_tables(partials: StateTable, windowing: Windowing) -> tuple[StateTable, StateTable]:
    """Open sessions, with ``partials`` of each, and entries: the times at which a key is to be looked at."""
    sessions = StateTable(
        id=partials.id,
        operator=partials.operator,
        kind=partials.kind,
        key=partials.key,
        sub_key=(WINDOW[0],),
        value=(WINDOW[1], *partials.value),
        shown=partials.shown,
        queryable=partials.queryable,
        expires=Expiry(clock="event", column=WINDOW_END, after=windowing.allowed_lateness),
        windows=windowing.state_details(),
    )
    entries = StateTable(
        id=f"{partials.id}.entries",
        operator=partials.operator,
        kind=StateKind.VALUE,
        key=partials.key,
        time=Column(name="_at", type="timestamp"),
        value=(Column(name="_called", type="boolean"),),
        queryable=False,
        expires=Expiry(clock="event", column="_at", after=0),
    )
    return sessions, entries


def pane_name(windows: GridWindows) -> str:
    """The column with the start of a pane."""
    return WINDOW_START if windows.one_per_row else _PANE_START


def check_names(operator: str, table: StateTable) -> None:
    """Are the state's columns named apart? Raises ``PipelineError`` with the fix."""
    seen: set[str] = set()
    for column in (*table.full_key, *table.value):
        if column.name.casefold() in seen:
            raise PipelineError(
                f"Operator {operator!r}: two columns of its state would be named {column.name!r}. Rename the key "
                "column or the aggregate of this name."
            )
        seen.add(column.name.casefold())
