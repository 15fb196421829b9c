"""Broadcast state in one subtask: read by all keys, written from control rows alone, and the same on every subtask."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.state import StateView
from epochal.state.column_bytes import as_list
from epochal.state.key_codec import KeyCodec
from epochal.state.row_codec import RowCodec
from epochal.state.table import StateKind, StateTable
from epochal.tasks.keyed_state import Cursor
from epochal.tasks.keys import KeyChunk
from epochal.tasks.list_state import KeyedList
from epochal.tasks.map_state import KeyedMap
from epochal.tasks.value_state import KeyedValue


class ControlRows:
    """Whether control rows are being taken: only then may broadcast state be written."""

    def __init__(self) -> None:
        self.taken = False

    def check(self, table: StateTable) -> None:
        """Raises ``RuntimeError``, which the author's code sees at its line."""
        if self.taken:
            raise RuntimeError(
                f"State {table.id!r} is broadcast state: every subtask holds the same, so that it is written only in "
                "process_broadcast(self, row, ctx), from control rows. Keep what belongs to a key in keyed state "
                "(without scope)."
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
    """The access to one broadcast state: as keyed state of the one key that there is."""
    state = _STATES[table.kind](table, view, max_parallelism, Cursor())
    state.control = control
    only = pa.table([pa.array([0], field.type) for field in table.owner_schema], schema=table.owner_schema)
    state.begin(KeyChunk(table.key, only, np.zeros(1, np.int32)))
    return state


def digest_of(changes: Iterable[tuple[StateTable, pa.Table]]) -> str:
    """The same for the same changes, in whatever order they were made."""
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
