"""``process`` beside a control stream: every subtask takes all control rows, then each of its keys' rows.

Control rows write broadcast state, the same on every subtask: each computes it, subtask 0 keeps it, and a digest of it
in the handles shows that all came to the same (E3).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.state import StateView
from epochal.declarations.keyed import BroadcastProcess, broadcast_states
from epochal.declarations.state import bind
from epochal.operators.process.author_object import read_only
from epochal.operators.process.keyed_calls import KeyedCalls
from epochal.operators.process.keyed_state import Cursor, KeyedValue
from epochal.operators.process.list_and_map_state import KeyedList, KeyedMap
from epochal.state.column_bytes import as_list
from epochal.state.key_codec import KeyCodec
from epochal.state.row_codec import RowCodec
from epochal.state.table import StateKind, StateTable
from epochal.tasks.keys import CHUNK_ROWS, KeyChunk, named_rows, spelled, whole_keys
from epochal.tasks.operator import Subtask
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.subtask_rows import KEY_GROUP, InputColumns, by_input
from epochal.tasks.task_output import OutputBatch

DATA, CONTROL = 0, 1


@dataclass(frozen=True)
class ProcessBroadcastWork:
    """The work of ``process`` with a control stream. Raises the errors of ``ProcessWork``, and ``AuthorError``, with
    the control row, for errors of ``process_broadcast``."""

    process: type[BroadcastProcess]
    data: InputColumns
    control: InputColumns
    chunk_rows: int = CHUNK_ROWS
    """The approximate number of rows that are Python objects at a time."""
    needs_order: ClassVar[bool] = True

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        calls = _Calls(self.process, self.data.names, subtask)
        where = f"Operator {subtask.operator!r}"
        runs = by_input(rows)
        data: list[pa.RecordBatch] = []
        bind(calls.author, calls.broadcast)
        with read_only(calls.author, where):
            for number, run in runs:
                if number == DATA:
                    data.append(run)
                    break
                calls.control_rows(self.control.own(run), self.control.names)
        output = list(calls.control_ends())
        if subtask.subtask == 0:
            yield from output
        bind(calls.author, calls.states)
        with read_only(calls.author, where):
            key = spelled(self.data.names, subtask.key_names)
            for chunk in whole_keys(self._data(data, runs), key, self.chunk_rows):
                yield from calls.process(chunk)

    def _data(
        self, first: list[pa.RecordBatch], others: Iterator[tuple[int, pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        for run in first:
            yield self.data.own(run, KEY_GROUP)
        for _, run in others:
            yield self.data.own(run, KEY_GROUP)


class _Calls(KeyedCalls):
    """The author's object in one subtask, called first for control rows, then for keys."""

    author: BroadcastProcess

    def __init__(self, process: type[BroadcastProcess], columns: Sequence[str], subtask: Subtask) -> None:
        self.broadcast: dict[str, BroadcastState] = {}
        self._control = ControlRows()
        tables = {table.id: table for table in subtask.tables}
        for name in broadcast_states(process):
            table = tables[f"{subtask.operator}.{name}"]
            view = subtask.transaction.view(table.id)
            self.broadcast[name] = broadcast_state(table, view, subtask.max_parallelism, self._control)
        super().__init__(process, columns, subtask)
        self.states = {**self.keyed, **self.broadcast}

    def control_rows(self, batch: pa.RecordBatch, names: Sequence[str]) -> None:
        for row in named_rows("Row", batch, names):
            with AuthorCall(partial("Operator {!r}, control row {}".format, self._subtask.operator, row)):
                self._output.add(self.author.process_broadcast(row, self._context))

    def control_ends(self) -> Iterator[OutputBatch]:
        """Close broadcast state for writes. Subtask 0 stages the changes, all subtasks set their digest. Returns the
        output of the control rows."""
        self._control.taken = True
        changes = [(state.table, rows) for state in self.broadcast.values() if (rows := state.changes()) is not None]
        self._subtask.agreement.digest = digest_of(changes)
        if self._subtask.subtask == 0:
            for table, rows in changes:
                self._subtask.transaction.stage(table.id, rows)
        return self._output.take()


class ControlRows:
    """The phase of control rows, in which broadcast state may be written. ``taken``: whether it has ended."""

    def __init__(self) -> None:
        self.taken = False

    def check(self, table: StateTable) -> None:
        """Raises ``RuntimeError`` in the author's code after the phase has ended."""
        if self.taken:
            raise RuntimeError(
                f"State {table.id!r} is broadcast state, which must be equal on every subtask: write it only in "
                "process_broadcast(self, row, ctx), from control rows. Store values of a key in keyed state (without "
                "scope)."
            )


class BroadcastValue(KeyedValue):
    control: ControlRows

    def set(self, *values: Any, **columns: Any) -> None:
        self.control.check(self.table)
        super().set(*values, **columns)

    def clear(self) -> None:
        self.control.check(self.table)
        super().clear()


class BroadcastList(KeyedList):
    control: ControlRows

    def append(self, *values: Any, **columns: Any) -> None:
        self.control.check(self.table)
        super().append(*values, **columns)

    def extend(self, elements: Iterable[Any]) -> None:
        self.control.check(self.table)
        super().extend(elements)

    def clear(self) -> None:
        self.control.check(self.table)
        super().clear()


class BroadcastMap(KeyedMap):
    control: ControlRows

    def put(self, key: Any, value: Any) -> None:
        self.control.check(self.table)
        super().put(key, value)

    def remove(self, key: Any) -> None:
        self.control.check(self.table)
        super().remove(key)

    def clear(self) -> None:
        self.control.check(self.table)
        super().clear()


BroadcastState = BroadcastValue | BroadcastList | BroadcastMap
_STATES: Mapping[StateKind, type[BroadcastState]] = {
    StateKind.VALUE: BroadcastValue,
    StateKind.LIST: BroadcastList,
    StateKind.MAP: BroadcastMap,
}


def broadcast_state(table: StateTable, view: StateView, max_parallelism: int, control: ControlRows) -> BroadcastState:
    """The access to one broadcast state, as keyed state with a single key."""
    state = _STATES[table.kind](table, view, max_parallelism, Cursor())
    state.control = control
    only = pa.table([pa.array([0], field.type) for field in table.owner_schema], schema=table.owner_schema)
    state.begin(KeyChunk(table.key, only, np.zeros(1, np.int32)))
    return state


def digest_of(changes: Iterable[tuple[StateTable, pa.Table]]) -> str:
    """A digest that is equal for equal changes in any order."""
    digest = hashlib.sha256()
    for table, rows in changes:
        keys = KeyCodec(table.key_schema).encode_array(rows)
        order = pc.sort_indices(keys)
        in_order = rows.take(order)
        digest.update(f"{table.id} {len(keys)}\n".encode())
        values = RowCodec(table.value_schema).encode_array(in_order)
        operations = in_order.column("_op").to_pylist()
        for operation, key, value in zip(operations, as_list(keys.take(order)), as_list(values), strict=True):
            for part in (operation.encode(), key, value):
                digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
