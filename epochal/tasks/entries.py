"""The stored entries of list and map state: scanned when the author asks, ahead when he asks for key after key."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.contracts.state import StateView
from epochal.state.access import TableAccess
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable
from epochal.tasks.fields import Fields
from epochal.tasks.keys import KeyChunk, named_rows
from epochal.tasks.values import column_of, python_values

LONGEST_LOOK_AHEAD = 4096

ABSENT = object()
"""Stands where there is no entry; ``None`` may be an entry's value."""


class StoredEntries:
    """Reads entries at the parent epoch, for the keys of one chunk after the other.

    Decoding one key's entries costs as much as starting to decode a thousand's. When keys are read in turn, as authors
    mostly do, the next ones are read ahead: 2, 4, 8 .. keys at a time. A key out of turn is read alone.
    """

    def __init__(self, table: StateTable, view: StateView, max_parallelism: int) -> None:
        self._fields = Fields(table.id, table.visible)
        self._view = view
        self._access = TableAccess(table, view, max_parallelism)
        self._sub_keys = KeyCodec(table.sub_key_schema)
        self._keys: KeyChunk
        self._ready: dict[int, dict[bytes, Any]] = {}
        self._next = 0
        self._ahead = 1

    def begin(self, keys: KeyChunk) -> None:
        """Go on with another chunk of keys."""
        self._keys = keys
        self._ready.clear()
        self._next = 0

    def all(self, position: int) -> dict[bytes, Any]:
        """The entries of the key at ``position`` by the bytes of their sub-keys, in their order. Asked once per key."""
        if position not in self._ready:
            self._read(position)
        return self._ready.pop(position)

    def one(self, position: int, sub_key: bytes) -> Any:
        """The value of one entry, or ``ABSENT``."""
        group, key = int(self._keys.groups[position]), self._keys.prefixes[position] + sub_key
        if self._fields.nested:  # its values take another form in Python than Arrow gives them
            found, values = self._view.lookup(np.array([group], np.int32), pa.array([key], pa.binary()))
            return self._values(values)[0] if found[0] else ABSENT
        row = self._view.get(group, key)
        if row is None:
            return ABSENT
        return (
            row[self._fields.names[0]]
            if self._fields.single
            else self._fields.row(*map(row.__getitem__, self._fields.names))
        )

    def _read(self, position: int) -> None:
        in_turn = position == self._next and not self._ready
        self._ahead = min(self._ahead * 2, LONGEST_LOOK_AHEAD) if in_turn else 1
        self._next = min(position + self._ahead, len(self._keys))
        here = slice(position, self._next)
        entries = self._access.entries(self._keys.table.slice(position, self._next - position), self._keys.groups[here])
        sub_keys = self._sub_keys.encode(entries.rows)
        values = self._values(entries.rows)
        bounds = np.searchsorted(entries.owner, np.arange(self._next - position + 1)).tolist()
        self._ready = {
            position + offset: dict(zip(sub_keys[first:end], values[first:end], strict=True))
            for offset, (first, end) in enumerate(pairwise(bounds))
        }

    def _values(self, rows: pa.Table) -> list[Any]:
        if self._fields.single:
            return python_values(column_of(rows, self._fields.names[0]))
        return named_rows("Value", rows, self._fields.names)
