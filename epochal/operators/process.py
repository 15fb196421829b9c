"""``process``: the author's function, once per key and epoch, over rows that stream in the order of the keys.

Only the calls themselves are made one by one. Key boundaries, rows, state and output are handled a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.declarations.keyed import Context, KeyedProcess
from epochal.declarations.keys import key_columns
from epochal.declarations.state import bind, declared_states
from epochal.errors import SchemaError
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import author_object, check_order, declared_output, declared_tables
from epochal.operators.distribution import Distribution, Input, Subtasks, sorted_by_subtask
from epochal.state.table import StateKind
from epochal.state.type_names import quoted
from epochal.tasks.calls import KEY_GROUP
from epochal.tasks.chunks import CHUNK_ROWS, Chunk, whole_keys
from epochal.tasks.keyed_state import Cursor
from epochal.tasks.keys import KeyChunk, named_rows
from epochal.tasks.list_state import KeyedList
from epochal.tasks.map_state import KeyedMap
from epochal.tasks.operator import Subtask
from epochal.tasks.output import OutputRows
from epochal.tasks.read_only import read_only
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.value_state import KeyedValue
from epochal.tasks.values import column_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ProcessOperator(Operator):
    """An author's :class:`~epochal.declarations.keyed.KeyedProcess`."""

    kind: ClassVar[str] = "process"
    name: str
    keys: tuple[str, ...]
    process: type[KeyedProcess]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys),)

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        tables = declared_tables(self.name, self.process, key, frame)
        output = declared_output(self.name, self.process.output)
        work = ProcessWork(self.process, tuple(frame.columns))
        return ProcessPlan(self.name, self.inputs, key, tables, work, output, self.process.order_columns())

    def details(self) -> dict[str, Any]:
        states = list(declared_states(self.process))
        return {"keys": list(self.keys), "class": self.process.__name__, "states": states}

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_order(self.name, self.process.order_columns(), frames[0])


@dataclass(frozen=True)
class ProcessPlan(OperatorPlan):
    """Rows come sorted by key, and of a key by ``order_by``."""

    order_by: tuple[str, ...]

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        columns = map(quoted, (*self.inputs[0].keys, *self.order_by))
        return sorted_by_subtask(super().distributed(frames, subtasks), *columns)


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
        calls = KeyedCalls(self.process, self.columns, subtask)
        bind(calls.author, calls.keyed)
        with read_only(calls.author, f"Operator {subtask.operator!r}"):
            for chunk in whole_keys(rows, subtask.key_names, self.chunk_rows):
                yield calls.process(chunk)


class KeyedCalls:
    """The author's object in one subtask, with its keyed states at the current key. To be bound by whoever makes it."""

    def __init__(self, process: type[KeyedProcess], columns: Sequence[str], subtask: Subtask) -> None:
        self._columns = columns
        self._subtask = subtask
        self._context = Context(subtask.epoch.epoch, subtask.operator, subtask.subtask)
        self._cursor = Cursor()
        self._output = OutputRows(subtask.operator, subtask.output)
        tables = {table.id: table for table in subtask.tables}
        self.keyed: dict[str, KeyedValue | KeyedList | KeyedMap] = {}
        for name, state in declared_states(process).items():
            if not state.scope.has_key:
                continue
            table = tables[f"{subtask.operator}.{name}"]
            view = subtask.transaction.view(table.id)
            self.keyed[name] = KEYED_STATES[table.kind](table, view, subtask.max_parallelism, self._cursor)
        self.author = author_object(subtask.operator, process)

    def process(self, chunk: Chunk) -> pa.RecordBatch:
        keys = self._keys(chunk)
        for state in self.keyed.values():
            state.begin(keys)
        self._call_each(keys, chunk)
        for state in self.keyed.values():
            changes = state.changes()
            if changes is not None:
                self._subtask.transaction.stage(state.table.id, changes)
        return self._output.take()

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
