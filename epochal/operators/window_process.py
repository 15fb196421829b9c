"""``window(..).process``: the author's function, once per key and window, with all rows of a window that has closed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from epochal.declarations import event_time
from epochal.declarations.expressions import Expression, to_column
from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.keys import key_columns
from epochal.declarations.sides import declared_sides
from epochal.declarations.state import bind
from epochal.declarations.windowing import WINDOW_COLUMNS, WINDOW_TIME, Windowing
from epochal.declarations.windows import GridWindows
from epochal.errors import PipelineError
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import check_order, declared_output, side_outputs
from epochal.operators.distribution import Distribution, Input, Subtasks
from epochal.operators.keyed_calls import KeyedCalls
from epochal.operators.panes import WINDOW, check_names, pane_name, pane_table
from epochal.operators.windowed import window_time
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import type_name
from epochal.state.types import check_column
from epochal.tasks.operator import Subtask
from epochal.tasks.read_only import read_only
from epochal.tasks.sides import OutputBatch, SideRows
from epochal.tasks.window_rows import COUNT, DIGEST, ClosedWindow, WindowRows
from epochal.tasks.windows import TIMESTAMP, late_before

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True)
class WindowProcessOperator(Operator):
    """An author's :class:`~epochal.declarations.keyed.KeyedProcess`, called when a window closes.

    State table: ``name.rows``, the rows of open windows.
    """

    kind: ClassVar[str] = "window_process"
    name: str
    keys: tuple[str, ...]
    event_time: str
    windowing: Windowing
    process: type[KeyedProcess]

    @property
    def windows(self) -> GridWindows:
        windows = self.windowing.windows
        assert isinstance(windows, GridWindows)  # the verb refuses sessions
        return windows

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys, event_time=self.event_time),)

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(declared_sides(self.process))

    @property
    def hold(self) -> int:
        return self.windowing.hold

    @property
    def event_time_of_output(self) -> str | None:
        return WINDOW_TIME

    def late_before(self, input: int, late: int) -> int | None:
        return late_before(self.windows, late, self.windowing.allowed_lateness)

    def plan(self, frames: Sequence[DataFrame]) -> WindowProcessPlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        table = self._table(key, frame)
        check_names(self.name, table)
        declared = declared_output(self.name, self.process.output)
        for name in declared.names:
            if name.casefold() in WINDOW_COLUMNS:
                raise PipelineError(
                    f"Operator {self.name!r}, output: window() adds column {name!r} itself. Leave it out of output and "
                    "of the rows."
                )
        order_by = self.process.order_columns() or (self.event_time,)
        work = WindowProcessWork(
            self.process, tuple(frame.columns), table, self.windows, self.windowing.allowed_lateness, order_by
        )
        output = pa.schema([*declared, *(column.to_arrow() for column in WINDOW)])
        pane = event_time.pane_start(self.windows, self.event_time).alias(pane_name(self.windows))
        sides = side_outputs(self.name, self.process)
        return WindowProcessPlan(self.name, self.inputs, key, (table,), work, output, pane, sides=sides)

    def _table(self, key: tuple[Column, ...], frame: DataFrame) -> StateTable:
        keys = {column.name.casefold() for column in key}
        columns = []
        for field in frame.schema:
            if field.name.casefold() in keys:
                continue
            if field.name.casefold() in WINDOW_COLUMNS:
                raise PipelineError(
                    f"Operator {self.name!r}: its input has a column {field.name!r}, as window() gives of its own "
                    "windows. Rename it, or drop it, before key_by()."
                )
            columns.append(Column(name=field.name, type=type_name(field.dataType)))
            check_column(self.name, columns[-1].name, columns[-1].type, key=False)
        rows = StateTable(
            id=f"{self.name}.rows",
            operator=self.name,
            kind=StateKind.MAP,
            key=key,
            sub_key=(Column(name=DIGEST, type="binary"),),
            value=(*columns, Column(name=COUNT, type="bigint")),
        )
        return pane_table(rows, self.windows, self.windowing)

    def details(self) -> dict[str, Any]:
        time = {"event_time": self.event_time, **self.windowing.details()}
        said = {"sides": list(self.sides)} if self.sides else {}
        return {"keys": list(self.keys), **time, "class": self.process.__name__, **said}

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_order(self.name, self.process.order_columns(), frames[0])


@dataclass(frozen=True)
class WindowProcessPlan(OperatorPlan):
    """Rows come in any order: the task keeps them, or arranges them."""

    pane: Expression

    @cached_property
    def finishing(self) -> tuple[list[SparkColumn], ...]:
        (columns,) = super().finishing
        return ([*columns, window_time()],)

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        return super().distributed([frames[0].select("*", to_column(self.pane))], subtasks)


@dataclass(frozen=True)
class WindowProcessWork:
    """Output: what the author's function gives, with ``window_start`` and ``window_end``.

    ``columns`` are the names of a row's columns, in the author's order. Raises as ``ProcessWork`` does.
    """

    process: type[KeyedProcess]
    columns: tuple[str, ...]
    table: StateTable
    windows: GridWindows
    allowed_lateness: int
    order_by: tuple[str, ...]
    batch_rows: int = BATCH_ROWS
    """About how many rows are Python objects at a time; more where a window of a key group has more."""
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        state = WindowRows(subtask, self.table, self.windows, self.allowed_lateness, self.batch_rows)
        new = state.taken(pa.Table.from_batches(list(rows)).combine_chunks())
        declared = pa.schema([field for field in subtask.output if field.name not in WINDOW_COLUMNS])
        each = replace(subtask, key=(*subtask.key, *WINDOW), output=declared, tables=())
        calls = KeyedCalls(self.process, self.columns, each)
        bind(calls.author, calls.keyed)
        with read_only(calls.author, f"Operator {subtask.operator!r}"):
            for window in state.closed(new, self.order_by):
                yield from self._called(calls, window, subtask.output)

    def _called(self, calls: KeyedCalls, window: ClosedWindow, output: pa.Schema) -> Iterator[OutputBatch]:
        bounds = [pa.scalar(time, pa.int64()).cast(TIMESTAMP) for time in (window.start, window.end)]
        chunk = window.chunk
        assert self.table.time is not None  # windows have one
        rows = chunk.rows.drop_columns([self.table.time.name])
        for field, bound in zip(WINDOW, bounds, strict=True):
            rows = rows.append_column(field.name, pa.repeat(bound, rows.num_rows))
        for batch in calls.process(replace(chunk, rows=rows)):
            if isinstance(batch, SideRows):
                yield batch
                continue
            columns = [*batch.columns, *(pa.repeat(bound, batch.num_rows) for bound in bounds)]
            yield pa.RecordBatch.from_arrays(columns, schema=output)
