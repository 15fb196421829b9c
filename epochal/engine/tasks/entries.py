"""The stored entries of list and map state: scanned key by key when the author asks, ahead when he asks every time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from epochal.engine.tasks.fields import Fields
from epochal.engine.tasks.keys import KeyChunk, named_rows
from epochal.engine.tasks.values import column_of, python_values
from epochal.state.access import TableAccess

Entries = list[tuple[bytes, Any]]
"""The bytes of the sub-key, and the value, in the order of the sub-keys."""

LONGEST_LOOK_AHEAD = 4096


class StoredEntries:
    """All stored entries below one key of a chunk.

    Decoding one entry costs as much as starting to decode a thousand. When the keys are read one after the other, as
    authors mostly do, the next ones are read ahead: 1, 2, 4 .. keys at a time; a gap starts again at one.
    """

    def __init__(self, access: TableAccess, fields: Fields) -> None:
        self._access = access
        self._fields = fields
        self._keys: KeyChunk
        self._ready: dict[int, Entries] = {}
        self._next = 0
        self._ahead = 1

    def begin(self, keys: KeyChunk) -> None:
        self._keys = keys
        self._ready.clear()
        self._next = 0

    def of(self, position: int) -> Entries:
        """The entries of the key at ``position``; asked once per key."""
        if position not in self._ready:
            self._read(position)
        return self._ready.pop(position)

    def _read(self, position: int) -> None:
        in_turn = position == self._next and not self._ready
        self._ahead = min(self._ahead * 2, LONGEST_LOOK_AHEAD) if in_turn else 1
        self._ready.clear()
        self._next = min(position + self._ahead, len(self._keys))
        positions = range(position, self._next)
        scans = [self._access.scan(int(self._keys.groups[p]), self._keys.prefixes[p]) for p in positions]
        values = iter(self._decoded([value for scan in scans for _, value in scan]))
        for p, scan in zip(positions, scans, strict=True):
            cut = len(self._keys.prefixes[p])
            self._ready[p] = [(key[cut:], next(values)) for key, _ in scan]

    def _decoded(self, rows: list[bytes]) -> list[Any]:
        if not rows:
            return []
        table: pa.Table = self._access.decode_values(rows)
        if self._fields.single:
            return python_values(column_of(table, self._fields.names[0]))
        return named_rows("Value", table, self._fields.names)
