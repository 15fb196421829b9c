"""``window(..).process``: the author's function, once per key and window, with all rows of a window that has closed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.state import bind
from epochal.declarations.windows import WINDOW_COLUMNS
from epochal.operators.process.author_object import read_only
from epochal.operators.process.keyed_calls import KeyedCalls
from epochal.operators.process.output_rows import OutputRows
from epochal.operators.windows.grid_rows import ClosedWindows, WindowRows
from epochal.operators.windows.work import WINDOW
from epochal.tasks.keys import Chunk, KeyChunk, spelled
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import gathered
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.task_output import OutputBatch, SideRows
from epochal.tasks.values import column_of
from epochal.tasks.windows import timestamps


@dataclass(frozen=True)
class WindowProcessWork:
    """Output: the rows of the author's function, with ``window_start`` and ``window_end``.

    ``columns``: the columns of a row, in the author's order and the spelling of the input. Raises the errors of
    ``ProcessWork``.
    """

    process: type[KeyedProcess]
    columns: tuple[str, ...]
    rows: WindowRows
    order_by: tuple[str, ...]
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        calls = WindowCalls(self.process, self.columns, subtask)
        bind(calls.author, calls.keyed)
        with read_only(calls.author, f"Operator {subtask.operator!r}"):
            for closed in self.rows.closed(subtask, gathered(rows), self.order_by):
                yield from calls.of_windows(closed)


class CountedRows(OutputRows):
    """Output rows, and the number of rows of each call."""

    def begin(self) -> None:
        self.counts: list[int] = []

    def add(self, result: Any) -> None:
        before = len(self._rows)
        super().add(result)
        self.counts.append(len(self._rows) - before)


class WindowCalls(KeyedCalls):
    """Calls of the author's function, one for each window. Keys and output rows also have the bounds of the window."""

    def __init__(self, process: type[KeyedProcess], columns: Sequence[str], subtask: Subtask) -> None:
        declared = pa.schema([field for field in subtask.output if field.name not in WINDOW_COLUMNS])
        each = replace(subtask, key=(*subtask.key, *WINDOW), output=declared, tables=())
        super().__init__(process, columns, each)
        self._whole = subtask
        own = dict(zip(subtask.key_names, spelled(columns, subtask.key_names), strict=True))
        self._renamed = {name: spelling for name, spelling in own.items() if name != spelling}
        self._counted = CountedRows(subtask.operator, declared, subtask.sides)
        self._output = self._counted

    def of_windows(self, closed: ClosedWindows) -> Iterator[OutputBatch]:
        """The function's output for these windows."""
        first = closed.chunk.rows.take(pa.array(closed.chunk.starts))
        keys = first.select([column.name for column in self._whole.key])
        for field, times in zip(WINDOW, (closed.starts, closed.ends), strict=True):
            keys = keys.append_column(field.name, timestamps(times))
        groups = column_of(first, KEY_GROUP).to_numpy()
        self._counted.begin()
        self._call_each(KeyChunk(self._subtask.key, keys, groups), self._as_in_the_input(closed.chunk))
        bounds = [timestamps(np.repeat(times, self._counted.counts)) for times in (closed.starts, closed.ends)]
        for batch in self._output.take():
            if isinstance(batch, SideRows):
                yield batch
            else:
                yield pa.RecordBatch.from_arrays([*batch.columns, *bounds], schema=self._whole.output)

    def _as_in_the_input(self, chunk: Chunk) -> Chunk:
        """Rows with their key columns in the spelling of the input."""
        if not self._renamed:
            return chunk
        names = [self._renamed.get(name, name) for name in chunk.rows.column_names]
        return Chunk(chunk.rows.rename_columns(names), chunk.starts)
