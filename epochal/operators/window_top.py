"""``window(..).top``: of each window the first rows in an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.contracts.stream_kind import Accepted
from epochal.declarations.schemas import key_columns
from epochal.declarations.windows import WINDOW_COLUMNS, WINDOW_TIME
from epochal.operators import panes
from epochal.operators.panes import WINDOW, check_names
from epochal.operators.top import RANK, TAKES, ordered_by, ranked, row_columns
from epochal.operators.windowed import WindowedOperator, WindowedRowsPlan, window_time
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import array_name, struct_name
from epochal.tasks.window_top import BestRows, WindowTopWork

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

ROWS = "rows"
"""The column of the state table that has the best rows of a pane, an array."""


@dataclass(frozen=True)
class WindowTopOperator(WindowedOperator):
    """State tables as those of an aggregate over the same windows: of each pane, or session, the best ``rows``."""

    kind: ClassVar[str] = "window_top"
    tells_rows_apart: ClassVar[tuple[str, ...]] = (RANK.name,)
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
        """The event time of what windows gave: the window gives it anew."""
        return (WINDOW_TIME,) if self.event_time.casefold() == WINDOW_TIME else ()

    def passes_on(self, input: int) -> bool:
        return True

    def details(self) -> dict[str, Any]:
        return {**super().details(), **ranked(self.count, self.by, self.descending)}


@dataclass(frozen=True)
class WindowTopPlan(WindowedRowsPlan):
    """Only what the task keeps is shuffled; what it gives of a window gets the window's event time."""

    @cached_property
    def finishing(self) -> tuple[list[SparkColumn], ...]:
        (columns,) = super().finishing
        first = len(self.key) + len(WINDOW)
        return ([*columns[:first], window_time(), *columns[first:]],)
