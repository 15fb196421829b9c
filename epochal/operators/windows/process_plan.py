"""``window(..).process``: calls the author's function once per key and closed window, with all rows of the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from epochal.declarations import event_time
from epochal.declarations.expressions import Expression
from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.schemas import key_columns
from epochal.declarations.sides import declared_sides
from epochal.declarations.windows import WINDOW_COLUMNS, GridWindows
from epochal.errors import PipelineError
from epochal.operators.declared import check_order, declared_output, side_outputs
from epochal.operators.windows import panes
from epochal.operators.windows.grid_rows import COUNT, DIGEST, GridWindowRows, WindowRows
from epochal.operators.windows.panes import check_names
from epochal.operators.windows.plan import WindowedOperator, WindowedRowsPlan, window_time, with_window_time
from epochal.operators.windows.process_work import WindowProcessWork
from epochal.operators.windows.session_rows import ROWS, TIME, RowCounts, SessionWindowRows
from epochal.operators.windows.session_work import SessionAggregateWork
from epochal.operators.windows.work import WINDOW
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import type_name
from epochal.state.types import check_column
from epochal.tasks.task_output import PassthroughColumn

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

BATCH_ROWS: Final = 1 << 16
"""The approximate number of rows that are Python objects at a time; more if a single window has more."""


@dataclass(frozen=True)
class WindowProcessOperator(WindowedOperator):
    """An author's :class:`~epochal.declarations.keyed.KeyedProcess`, called when a window closes.

    State tables: ``name.rows``, the rows of open windows; for sessions also ``name.sessions``, the open sessions of
    each key, and ``name.sessions.entries``, the times at which to check a key.
    """

    kind: ClassVar[str] = "window_process"
    process: type[KeyedProcess]

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(declared_sides(self.process))

    def plan(self, frames: Sequence[DataFrame]) -> WindowProcessPlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        self.check(frames)
        tables, rows, time = self._state(key, self._columns(key, frame))
        for table in tables:
            check_names(self.name, table)
        declared = declared_output(self.name, self.process.output)
        for name in declared.names:
            if name.casefold() in WINDOW_COLUMNS:
                raise PipelineError(
                    f"Operator {self.name!r}, output: window() adds column {name!r}. Remove it from output and from "
                    "the rows."
                )
        own = {column.name.casefold(): column.name for column in key}
        columns = {name.casefold(): own.get(name.casefold(), name) for name in frame.columns}
        order_by = tuple(columns[name.casefold()] for name in self.process.order_columns() or (self.event_time,))
        work = WindowProcessWork(self.process, tuple(frame.columns), rows, order_by)
        output = pa.schema([*declared, *(column.to_arrow() for column in WINDOW)])
        sides = side_outputs(self.name, self.process)
        return WindowProcessPlan(
            self.name, self.inputs, key, tables, work, output, tuple(columns.values()), time, sides=sides
        )

    def _columns(self, key: tuple[Column, ...], frame: DataFrame) -> tuple[Column, ...]:
        keys = {column.name.casefold() for column in key}
        columns = []
        for field in frame.schema:
            if field.name.casefold() not in keys:
                columns.append(Column(name=field.name, type=type_name(field.dataType)))
                check_column(self.name, columns[-1].name, columns[-1].type, key=False)
        return tuple(columns)

    def _state(
        self, key: tuple[Column, ...], columns: tuple[Column, ...]
    ) -> tuple[tuple[StateTable, ...], WindowRows, Expression]:
        """The state tables, the work that stores rows in them, and the column of their time."""
        digest = Column(name=DIGEST, type="binary")
        rows = StateTable(
            id=f"{self.name}.rows",
            operator=self.name,
            kind=StateKind.MAP,
            key=key,
            sub_key=(digest,),
            value=(*columns, Column(name=COUNT, type="bigint")),
        )
        windows, lateness = self.windowing.windows, self.windowing.allowed_lateness
        if isinstance(windows, GridWindows):
            table = panes.pane_table(rows, windows, self.windowing)
            assert table.time is not None  # windows have one
            pane = event_time.pane_start(windows, self.event_time).alias(table.time.name)
            return (table,), GridWindowRows(table, windows, lateness, BATCH_ROWS), pane
        sub_key = (Column(name=TIME, type="timestamp"), digest)
        table = rows.model_copy(update={"sub_key": sub_key, "windows": self.windowing.state_details()})
        counts = StateTable(
            id=f"{self.name}.sessions",
            operator=self.name,
            kind=StateKind.AGGREGATE,
            key=key,
            value=(Column(name=ROWS, type="bigint"),),
        )
        sessions, entries = panes.session_tables(counts, self.windowing)
        work = SessionAggregateWork(RowCounts(counts), sessions, entries, windows.gap, lateness)
        start, _ = event_time.session_bounds(windows, self.event_time)
        return (table, sessions, entries), SessionWindowRows(table, work, BATCH_ROWS), start.alias(TIME)

    @property
    def author_code(self) -> tuple[Any, ...]:
        return (self.process,)

    def details(self) -> dict[str, Any]:
        said = {"sides": list(self.sides)} if self.sides else {}
        return {**super().details(), "class": self.process.__name__, **said}

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_order(self.name, self.process.order_columns(), frames[0], nested=False)


@dataclass(frozen=True)
class WindowProcessPlan(WindowedRowsPlan):
    """Adds the event time of the window to the function's rows."""

    @cached_property
    def finishing(self) -> tuple[list[SparkColumn], ...]:
        (columns,) = super().finishing
        return ([*columns, window_time()],)

    @property
    def columns_of_task(self) -> Mapping[str, PassthroughColumn | None]:
        return {} if self.sides else with_window_time(self.output.names)
