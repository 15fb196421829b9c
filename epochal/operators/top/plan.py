"""``top``: the first rows of each key in an order, kept up to date. ``window(..).top``: the first rows of each
window."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from epochal.contracts.stream_kind import Accepted, StreamKind, only_append, upsert
from epochal.declarations.names import require_columns
from epochal.declarations.schemas import carried_schema, key_columns
from epochal.declarations.spark_errors import at
from epochal.declarations.windows import WINDOW_COLUMNS, WINDOW_TIME
from epochal.errors import PipelineError
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input
from epochal.operators.top.work import RANK, BestRows, TopWork, WindowTopWork
from epochal.operators.windows import panes
from epochal.operators.windows.panes import check_names
from epochal.operators.windows.plan import WindowedOperator, WindowedRowsPlan, window_time, with_window_time
from epochal.operators.windows.work import WINDOW
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import array_name, struct_name, type_name
from epochal.state.types import check_column
from epochal.tasks.keys import spelled
from epochal.tasks.task_output import PassthroughColumn

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

MOST: Final = 1000
TAKES: Final = only_append(
    "Apply top() to the rows themselves; of new values of keys it would also keep replaced ones."
)
ROWS = "rows"
"""The column of the state table with the best rows of a pane, an array."""


@dataclass(frozen=True)
class TopOperator(Operator):
    """State table: the operator's name, with ``rank`` (1 is the first) as its sub-key and a row's other columns."""

    kind: ClassVar[str] = "top"
    name: str
    keys: tuple[str, ...]
    count: int
    by: tuple[str, ...]
    descending: bool
    queryable: bool

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys, TAKES),)

    def gives(self, streams: Sequence[StreamKind]) -> StreamKind:
        return upsert((*self.keys, RANK.name))

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        value = row_columns(self.name, frame, self.keys, (RANK.name,))
        by, keys = ordered_by(self.name, self.by, self.keys, value), spelled(frame.columns, self.keys)
        table = StateTable(
            id=self.name,
            operator=self.name,
            kind=StateKind.MAP,
            key=key,
            sub_key=(RANK,),
            value=value,
            ranked=ranked(self.count, by, self.descending),
            queryable=self.queryable,
        )
        output = pa.schema([column.to_arrow() for column in (*key, RANK, *value)])
        work = TopWork(table, keys, self.count, by, self.descending)
        return OperatorPlan(self.name, self.inputs, key, (table,), work, output)

    @property
    def grows(self) -> str | None:
        return "keeps rows of every key. If the number of keys is unbounded, use top(.., within=window)."

    def passes_on(self, input: int) -> bool:
        return True

    def details(self) -> dict[str, Any]:
        return {"keys": list(self.keys), **ranked(self.count, self.by, self.descending)}


def ranked(count: int, by: Sequence[str], descending: bool) -> dict[str, Any]:
    """The description of the ranked rows, as JSON."""
    return {"count": count, "by": list(by), "order": "descending" if descending else "ascending"}


def row_columns(
    operator: str, frame: DataFrame, keys: Sequence[str], own: Collection[str], without: Collection[str] = ()
) -> tuple[Column, ...]:
    """The stored columns of a row: all except those of the key and ``without``. ``own``: the names that top() adds.

    Raises ``PipelineError``, ``SchemaError`` with operator, column and fix.
    """
    with at(f"Operator {operator!r}"):
        for name in frame.columns:
            if name.casefold() in own and name.casefold() not in without:
                raise PipelineError(
                    f"its input has a column {name!r}, but top() adds a column with this name. Rename or drop it."
                )
        carried_schema(frame.schema)
    left = {name.casefold() for name in (*keys, *without)}
    fields = (field for field in frame.schema if field.name.casefold() not in left)
    columns = tuple(Column(name=field.name, type=type_name(field.dataType)) for field in fields)
    for column in columns:
        check_column(operator, column.name, column.type, key=False)
    return columns


def ordered_by(operator: str, by: Sequence[str], keys: Sequence[str], kept: Sequence[Column]) -> tuple[str, ...]:
    """The columns that rows are ranked by, in the spelling of the input. ``kept``: those of :func:`row_columns`.

    Raises ``PipelineError`` with operator, column and fix.
    """
    named = {column.name.casefold(): column for column in kept}
    with at(f"Operator {operator!r}"):
        require_columns(tuple(by), [*keys, *(column.name for column in kept)])
        for name in by:
            if name.casefold() not in named:
                raise PipelineError(f"top() is by {name!r}, a key column: all rows of a key have the same value.")
            if named[name.casefold()].type.startswith(("array<", "map<", "struct<", "variant")):
                raise PipelineError(f"rows cannot be ordered by {name!r}, a nested column. Order by a field of it.")
    return tuple(named[name.casefold()].name for name in by)


@dataclass(frozen=True)
class WindowTopOperator(WindowedOperator):
    """State tables: those of an aggregate over the same windows, with the best ``rows`` of each pane or session."""

    kind: ClassVar[str] = "window_top"
    row_key: ClassVar[tuple[str, ...]] = (RANK.name,)
    count: int
    by: tuple[str, ...]
    descending: bool
    queryable: bool

    @property
    def takes(self) -> Accepted:
        return TAKES

    def plan(self, frames: Sequence[DataFrame]) -> WindowTopPlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        kept = row_columns(self.name, frame, self.keys, self._own_columns, without=self._renewed)
        by = ordered_by(self.name, self.by, self.keys, kept)
        row_type = struct_name([(column.name, column.type) for column in kept])
        rows = Column(name=ROWS, type=array_name(row_type))
        partials = StateTable(
            id=self.name,
            operator=self.name,
            kind=StateKind.AGGREGATE,
            key=key,
            value=(rows,),
            ranked=ranked(self.count, by, self.descending),
            queryable=self.queryable,
        )
        tables = panes.tables(self.windowing, partials)
        check_names(self.name, tables[0])
        best = BestRows(partials, self.count, by, self.descending)
        windowed = panes.merging_work(self.windowing, best, tables)
        names = tuple(column.name for column in key)
        work = WindowTopWork(best, windowed, (*names, panes.pane_column(self.windowing)))
        output = pa.schema([*(column.to_arrow() for column in (*key, *WINDOW, RANK)), *best.row])
        columns = (*names, *(column.name for column in kept))
        start = panes.pane(self.windowing, self.event_time)
        return WindowTopPlan(self.name, self.inputs, key, tables, work, output, columns, start)

    @property
    def _own_columns(self) -> tuple[str, ...]:
        return (*WINDOW_COLUMNS, RANK.name, panes.pane_column(self.windowing))

    @property
    def _renewed(self) -> tuple[str, ...]:
        """The event-time column of rows from other windows, which this window replaces."""
        return (WINDOW_TIME,) if self.event_time.casefold() == WINDOW_TIME else ()

    def passes_on(self, input: int) -> bool:
        return True

    def details(self) -> dict[str, Any]:
        return {**super().details(), **ranked(self.count, self.by, self.descending)}


@dataclass(frozen=True)
class WindowTopPlan(WindowedRowsPlan):
    """Shuffles only stored columns. Adds the event time of the window to the task's rows."""

    @cached_property
    def finishing(self) -> tuple[list[SparkColumn], ...]:
        (columns,) = super().finishing
        first = len(self.key) + len(WINDOW)
        return ([*columns[:first], window_time(), *columns[first:]],)

    @property
    def columns_of_task(self) -> Mapping[str, PassthroughColumn | None]:
        return with_window_time(self.output.names, len(self.key) + len(WINDOW))
