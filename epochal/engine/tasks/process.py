"""T2 of ``process``: the author's function, once per key and epoch, over rows that stream in the order of the keys.

Only the calls themselves are made one by one. Key boundaries, rows, state and output are handled a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from epochal.engine.tasks.calls import KEY_GROUP
from epochal.engine.tasks.chunks import CHUNK_ROWS, Chunk, whole_keys
from epochal.engine.tasks.keyed_state import Cursor
from epochal.engine.tasks.keys import KeyChunk, named_rows
from epochal.engine.tasks.list_state import KeyedList
from epochal.engine.tasks.map_state import KeyedMap
from epochal.engine.tasks.operator import Subtask
from epochal.engine.tasks.output import OutputRows
from epochal.engine.tasks.read_only import read_only
from epochal.engine.tasks.reporting import author_error, author_traceback
from epochal.engine.tasks.value_state import KeyedValue
from epochal.engine.tasks.values import column_of
from epochal.errors import EpochalError, SchemaError
from epochal.pipeline.keyed import Context, KeyedProcess
from epochal.pipeline.state import bind, declared_states
from epochal.state.table import StateKind

KEYED_STATES: dict[StateKind, type[KeyedValue | KeyedList | KeyedMap]] = {
    StateKind.VALUE: KeyedValue,
    StateKind.LIST: KeyedList,
    StateKind.MAP: KeyedMap,
}


@dataclass(frozen=True)
class ProcessWork:
    """``columns`` are the names of a row's columns, in the author's order.

    Raises ``AuthorError`` for what the author's code raises, with the key; ``SchemaError`` for what it gives that does
    not fit the output or a state.
    """

    process: type[KeyedProcess]
    columns: tuple[str, ...]
    chunk_rows: int = CHUNK_ROWS
    """About how many rows are Python objects at a time."""
    needs_order: ClassVar[bool] = True

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        calls = _Calls(self, subtask)
        with read_only(calls.author, f"Operator {subtask.operator!r}"):
            for chunk in whole_keys(rows, subtask.key_names, self.chunk_rows):
                yield calls.process(chunk)


class _Calls:
    """The author's object in one subtask, with its states bound to the current key."""

    def __init__(self, work: ProcessWork, subtask: Subtask) -> None:
        self._columns = work.columns
        self._subtask = subtask
        self._context = Context(subtask.epoch.epoch, subtask.operator, subtask.subtask)
        self._cursor = Cursor()
        self._output = OutputRows(subtask.operator, subtask.output)
        tables = {table.id: table for table in subtask.tables}
        self._states: dict[str, KeyedValue | KeyedList | KeyedMap] = {}
        for name in declared_states(work.process):
            table = tables[f"{subtask.operator}.{name}"]
            view = subtask.transaction.view(table.id)
            self._states[name] = KEYED_STATES[table.kind](table, view, subtask.max_parallelism, self._cursor)
        try:
            self.author = work.process()
        except Exception as error:
            raise author_error(f"Operator {subtask.operator!r}, making {work.process.__name__}", error) from error
        bind(self.author, self._states)

    def process(self, chunk: Chunk) -> pa.RecordBatch:
        keys = self._keys(chunk)
        for state in self._states.values():
            state.begin(keys)
        self._call_each(keys, chunk)
        for state in self._states.values():
            changes = state.changes()
            if changes is not None:
                self._subtask.transaction.stage(state.table.id, changes)
        return self._output.take()

    def _call_each(self, keys: KeyChunk, chunk: Chunk) -> None:
        rows = named_rows("Row", chunk.rows, self._columns)
        process, add, cursor, context = self.author.process, self._output.add, self._cursor, self._context
        start = 0
        try:
            for position, (key, end) in enumerate(zip(keys.names, chunk.ends, strict=True)):
                cursor.position = position
                add(process(key, rows[start:end], context))
                start = end
        except SchemaError as error:
            raise SchemaError(f"{self._where(keys)}: {error.message}\n{author_traceback(error)}") from error
        except EpochalError:
            raise
        except (Exception, SystemExit) as error:
            raise author_error(self._where(keys), error) from error

    def _keys(self, chunk: Chunk) -> KeyChunk:
        first = chunk.rows.take(pa.array(chunk.starts))
        groups = column_of(first, KEY_GROUP).to_numpy()
        schema = pa.schema([column.to_arrow() for column in self._subtask.key])
        return KeyChunk(self._subtask.key, first.select(schema.names).cast(schema), groups)

    def _where(self, keys: KeyChunk) -> str:
        return f"Operator {self._subtask.operator!r}, key {keys.shown(self._cursor.position)}"
