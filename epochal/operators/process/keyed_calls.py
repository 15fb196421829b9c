"""The calls of an author's keyed function in one subtask, one call per key, a chunk of keys at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.declarations.feedback import HOP
from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.state import declared_states
from epochal.operators.process.author_object import author_object
from epochal.operators.process.contexts import context_of
from epochal.operators.process.keyed_state import Cursor, KeyedValue, RefreshedValue, Times
from epochal.operators.process.list_and_map_state import KeyedList, KeyedMap, RefreshedList, RefreshedMap
from epochal.operators.process.output_rows import OutputRows
from epochal.state.expiry import microseconds
from epochal.state.table import StateKind, StateTable
from epochal.tasks.keys import Chunk, KeyChunk, named_rows, spelled
from epochal.tasks.operator import Subtask
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.task_output import OutputBatch
from epochal.tasks.values import column_of

KeyedAccess = KeyedValue | KeyedList | KeyedMap
KEYED_STATES: dict[StateKind, type[KeyedAccess]] = {
    StateKind.VALUE: KeyedValue,
    StateKind.LIST: KeyedList,
    StateKind.MAP: KeyedMap,
}
REFRESHED_STATES: dict[StateKind, type[KeyedAccess]] = {
    StateKind.VALUE: RefreshedValue,
    StateKind.LIST: RefreshedList,
    StateKind.MAP: RefreshedMap,
}


class KeyedCalls:
    """The author's object in one subtask, with its keyed states at the current key. The creator binds the states.

    ``columns``: the names of a row's columns, in the spelling of the input. ``hops``: whether input and output have
    hops.
    """

    def __init__(
        self,
        process: type[KeyedProcess],
        columns: Sequence[str],
        subtask: Subtask,
        event_time: str | None = None,
        hops: bool = False,
    ) -> None:
        self._columns = columns
        self._key_in_rows = spelled(columns, subtask.key_names)
        self._subtask = subtask
        self._context = context_of(subtask)
        self._cursor = Cursor()
        self._hops = OutputWithHops(subtask, self._cursor) if hops else None
        output = OutputRows(subtask.operator, subtask.output, subtask.sides) if self._hops is None else self._hops
        self._output = output
        tables = {table.id: table for table in subtask.tables}
        self.keyed: dict[str, KeyedAccess] = {}
        for name, state in declared_states(process).items():
            if not state.scope.has_key:
                continue
            table = tables[f"{subtask.operator}.{name}"]
            make, view = _access_of(table), subtask.living(table)
            self.keyed[name] = make(table, view, subtask.max_parallelism, self._cursor, subtask.epoch_time)
        expiring = (state.table.expires for state in self.keyed.values())
        in_event_time = any(expires is not None and expires.clock == "event" for expires in expiring)
        self._touches_by = event_time if in_event_time else None
        self.author = author_object(subtask.operator, process)

    def process(self, chunk: Chunk) -> Iterator[OutputBatch]:
        keys = self._keys(chunk)
        for state in self.keyed.values():
            state.begin(keys)
        if self._touches_by is not None:
            self._cursor.times = self._latest_times(chunk.rows, chunk.ends)
        self._begin_hops(chunk.rows, chunk.ends)
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
        with AuthorCall(lambda: self._where(keys)):
            for position, (key, end) in enumerate(zip(keys.names, chunk.ends, strict=True)):
                cursor.position = position
                add(process(key, rows[start:end], context))
                start = end

    def _latest_times(self, rows: pa.Table | None, ends: Sequence[int]) -> Times:
        """The event time of each key's call: that of its latest row, but at least the watermark ``late``."""
        latest = np.full(len(ends), self._subtask.watermarks.late)
        if rows is None or self._touches_by is None:
            return latest
        return _highest(np.asarray(microseconds(column_of(rows, self._touches_by)), np.int64), ends, latest)

    def _begin_hops(self, rows: pa.Table | None, ends: Sequence[int]) -> None:
        if self._hops is None:
            return
        none = np.zeros(len(ends), np.int64)
        if rows is None:
            self._hops.of_keys = none
        else:
            hops = np.asarray(pc.fill_null(column_of(rows, HOP), 0), np.int64)
            self._hops.of_keys = _highest(hops, ends, none)

    def _keys(self, chunk: Chunk) -> KeyChunk:
        first = chunk.rows.take(pa.array(chunk.starts))
        groups = column_of(first, KEY_GROUP).to_numpy()
        schema = pa.schema([column.to_arrow() for column in self._subtask.key])
        keys = first.select(self._key_in_rows).rename_columns(schema.names)
        return KeyChunk(self._subtask.key, keys.cast(schema), groups)

    def _where(self, keys: KeyChunk) -> str:
        return f"Operator {self._subtask.operator!r}, key {keys.shown(self._cursor.position)}"


class OutputWithHops(OutputRows):
    """Output rows, each with the hop of the key of its call."""

    def __init__(self, subtask: Subtask, cursor: Cursor) -> None:
        own = pa.schema([column for column in subtask.output if column.name != HOP])
        super().__init__(subtask.operator, own, subtask.sides)
        self._all, self._cursor = subtask.output, cursor
        self._rows_of: list[tuple[int, int]] = []
        self.of_keys: Times = np.zeros(0, np.int64)

    def add(self, result: Iterable[Any] | None) -> None:
        before = len(self._rows)
        super().add(result)
        self._rows_of.append((int(self.of_keys[self._cursor.position]), len(self._rows) - before))

    def _taken(self) -> pa.RecordBatch:
        taken, rows_of = super()._taken(), np.array(self._rows_of, np.int64).reshape(-1, 2)
        self._rows_of = []
        hops = pa.array(np.repeat(rows_of[:, 0], rows_of[:, 1]), pa.int32())
        return pa.RecordBatch.from_arrays([*taken.columns, hops], schema=self._all)


def _highest(values: Times, ends: Sequence[int], least: Times) -> Times:
    """The maximum of the values of each key's rows, which end at ``ends``, and of its value in ``least``."""
    starts = np.array([0, *ends[:-1]], np.int64)
    with_rows = np.flatnonzero(np.asarray(ends) > starts)
    highest = least.copy()
    highest[with_rows] = np.maximum(least[with_rows], np.maximum.reduceat(values, starts[with_rows]))
    return highest


def _access_of(table: StateTable) -> type[KeyedAccess]:
    by_reads = table.expires is not None and table.expires.refresh == "read_and_write"
    return (REFRESHED_STATES if by_reads else KEYED_STATES)[table.kind]
