"""``window(..).top``: of each window the first rows in an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.contracts.stream_kind import APPEND, StreamKind, upsert
from epochal.declarations.carried import carried_schema
from epochal.declarations.expressions import Expression, column, to_column
from epochal.declarations.keys import key_columns
from epochal.declarations.names import require_columns
from epochal.declarations.spark_errors import at
from epochal.declarations.windowing import WINDOW_COLUMNS, WINDOW_TIME, Windowing
from epochal.errors import PipelineError
from epochal.operators import panes
from epochal.operators.contract import Distribution, Input, Operator, OperatorPlan
from epochal.operators.distribution import Subtasks
from epochal.operators.panes import WINDOW, check_names
from epochal.operators.top import RANK, TAKES, ranked
from epochal.operators.windowed import window_time
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import array_name, struct_name, type_name
from epochal.state.types import check_column
from epochal.tasks.window_top import BestRows, WindowTopWork

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

ROWS = "rows"
"""The column of the state table that has the best rows of a pane, an array."""


@dataclass(frozen=True)
class WindowTopOperator(Operator):
    """State tables as those of an aggregate over the same windows: of each pane, or session, the best ``rows``."""

    kind: ClassVar[str] = "window_top"
    name: str
    keys: tuple[str, ...]
    event_time: str
    windowing: Windowing
    count: int
    by: tuple[str, ...]
    descending: bool
    queryable: bool

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys, TAKES, event_time=self.event_time),)

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
        return upsert((*self.keys, *panes.window_key(self.windowing), RANK.name))

    def plan(self, frames: Sequence[DataFrame]) -> WindowTopPlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        with at(f"Operator {self.name!r}"):
            kept = self._kept(frame)
            by = self._order(kept)
        row_type = struct_name([(column.name, column.type) for column in kept])
        rows = Column(name=ROWS, type=array_name(row_type))
        check_column(self.name, rows.name, rows.type, key=False)
        partials = StateTable(
            id=self.name,
            operator=self.name,
            kind=StateKind.AGGREGATE,
            key=key,
            value=(rows,),
            queryable=self.queryable,
        )
        by_pane, *others = panes.tables(self.windowing, partials)
        kept_of_each = {"ranked": ranked(self.count, by, self.descending)}
        tables = (by_pane.model_copy(update=kept_of_each), *others)
        check_names(self.name, tables[0])
        best = BestRows(partials, self.count, by, self.descending)
        pane = panes.pane_column(self.windowing)
        windowed = panes.merging_work(self.windowing, best, tables)
        work = WindowTopWork(best, windowed, (*(column.name for column in key), pane))
        output = pa.schema([*(column.to_arrow() for column in (*key, *WINDOW, RANK)), *best.row])
        start = panes.pane(self.windowing, self.event_time)
        return WindowTopPlan(self.name, self.inputs, key, tables, work, output, kept, start)

    def _kept(self, frame: DataFrame) -> tuple[Column, ...]:
        """The columns of a row but for the key's, and the event time of what windows gave: the window gives it anew."""
        carried_schema(frame.schema)
        keys = {name.casefold() for name in self.keys}
        renewed = {WINDOW_TIME} if self.event_time.casefold() == WINDOW_TIME else set()
        kept = []
        for field in frame.schema:
            name = field.name.casefold()
            if name in keys or name in renewed:
                continue
            if name in (*WINDOW_COLUMNS, RANK.name, panes.pane_column(self.windowing)):
                raise PipelineError(
                    f"its input has a column {field.name!r}, as top() gives one of its own. Rename it, or drop it."
                )
            kept.append(Column(name=field.name, type=type_name(field.dataType)))
        return tuple(kept)

    def _order(self, kept: Sequence[Column]) -> tuple[str, ...]:
        require_columns(self.by, [*self.keys, *(column.name for column in kept)])
        named = {column.name.casefold(): column for column in kept}
        for name in self.by:
            if name.casefold() not in named:
                raise PipelineError(f"top() is by {name!r}, a column of the key: all rows of a key have the same.")
            if named[name.casefold()].type.startswith(("array<", "map<", "struct<", "variant")):
                raise PipelineError(f"rows cannot be ordered by {name!r}, a nested column. Order by a field of it.")
        return tuple(named[name.casefold()].name for name in self.by)

    def details(self) -> dict[str, Any]:
        time = {"event_time": self.event_time, **self.windowing.details()}
        return {"keys": list(self.keys), **time, **ranked(self.count, self.by, self.descending)}


@dataclass(frozen=True)
class WindowTopPlan(OperatorPlan):
    """Only what the task keeps is shuffled, with the start of each row's pane."""

    kept: tuple[Column, ...]
    pane: Expression

    @cached_property
    def carried(self) -> list[SparkColumn]:
        """What the task gets of a row; made once, as every column costs calls into the JVM."""
        return [
            *(to_column(column(each.name).alias(each.name)) for each in (*self.key, *self.kept)),
            to_column(self.pane),
        ]

    @cached_property
    def finishing(self) -> tuple[list[SparkColumn], ...]:
        columns = [to_column(column(name)) for name in self.output.names]
        first = len(self.key) + len(WINDOW)
        return ([*columns[:first], window_time(), *columns[first:]],)

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        return super().distributed([frames[0].select(*self.carried)], subtasks)
