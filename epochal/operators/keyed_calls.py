"""The calls of an author's keyed function in one subtask: a chunk of keys at a time, one call each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.state import declared_states
from epochal.errors import SchemaError
from epochal.operators.declared import author_object
from epochal.state.table import StateKind
from epochal.tasks.calls import KEY_GROUP
from epochal.tasks.chunks import Chunk
from epochal.tasks.contexts import context_of
from epochal.tasks.keyed_state import Cursor
from epochal.tasks.keys import KeyChunk, named_rows
from epochal.tasks.list_state import KeyedList
from epochal.tasks.map_state import KeyedMap
from epochal.tasks.operator import Subtask
from epochal.tasks.output import OutputRows
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.sides import OutputBatch
from epochal.tasks.value_state import KeyedValue
from epochal.tasks.values import column_of

KEYED_STATES: dict[StateKind, type[KeyedValue | KeyedList | KeyedMap]] = {
    StateKind.VALUE: KeyedValue,
    StateKind.LIST: KeyedList,
    StateKind.MAP: KeyedMap,
}


class KeyedCalls:
    """The author's object in one subtask, with its keyed states at the current key. To be bound by whoever makes it."""

    def __init__(self, process: type[KeyedProcess], columns: Sequence[str], subtask: Subtask) -> None:
        self._columns = columns
        self._subtask = subtask
        self._context = context_of(subtask)
        self._cursor = Cursor()
        self._output = OutputRows(subtask.operator, subtask.output, subtask.sides)
        tables = {table.id: table for table in subtask.tables}
        self.keyed: dict[str, KeyedValue | KeyedList | KeyedMap] = {}
        for name, state in declared_states(process).items():
            if not state.scope.has_key:
                continue
            table = tables[f"{subtask.operator}.{name}"]
            view = subtask.transaction.view(table.id)
            make, time = KEYED_STATES[table.kind], subtask.epoch_time
            self.keyed[name] = make(table, view, subtask.max_parallelism, self._cursor, time)
        self.author = author_object(subtask.operator, process)

    def process(self, chunk: Chunk) -> Iterator[OutputBatch]:
        keys = self._keys(chunk)
        for state in self.keyed.values():
            state.begin(keys)
        self._call_each(keys, chunk)
        self._stage_states()
        return self._output.take()

    def _stage_states(self) -> None:
        for state in self.keyed.values():
            changes = state.changes()
            if changes is not None:
                self._subtask.transaction.stage(state.table.id, changes)

    def _call_each(self, keys: KeyChunk, chunk: Chunk) -> None:
        rows = named_rows("Row", chunk.rows, self._columns)
        process, add, cursor, context = self.author.process, self._output.add, self._cursor, self._context
        start = 0
        with AuthorCall(lambda: self._where(keys), SchemaError):
            for position, (key, end) in enumerate(zip(keys.names, chunk.ends, strict=True)):
                cursor.position = position
                add(process(key, rows[start:end], context))
                start = end

    def _keys(self, chunk: Chunk) -> KeyChunk:
        first = chunk.rows.take(pa.array(chunk.starts))
        groups = column_of(first, KEY_GROUP).to_numpy()
        schema = pa.schema([column.to_arrow() for column in self._subtask.key])
        return KeyChunk(self._subtask.key, first.select(schema.names).cast(schema), groups)

    def _where(self, keys: KeyChunk) -> str:
        return f"Operator {self._subtask.operator!r}, key {keys.shown(self._cursor.position)}"
