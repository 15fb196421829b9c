"""List and map state: each element or entry is a row of the state table, with its position ``_index`` or the map's own
key as sub-key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.contracts.state import StateView
from epochal.declarations.state import LIST_INDEX, ListAccess, MapAccess
from epochal.operators.process.keyed_state import Cursor, KeyedState
from epochal.state.access import TableAccess
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable
from epochal.tasks.keys import KeyChunk, named_rows
from epochal.tasks.state_values import Fields, SubKeys
from epochal.tasks.values import column_of, python_values

LONGEST_LOOK_AHEAD = 4096
ABSENT = object()
"""Marks a missing entry; ``None`` may be the value of an entry."""


@dataclass(slots=True)
class _Elements:
    """The list of one key: the stored elements, unless it was cleared, followed by the added ones."""

    stored: dict[bytes, Any]
    added: list[Any] = field(default_factory=list)
    cleared: bool = False
    read: bool = False

    @property
    def kept(self) -> list[Any]:
        return [] if self.cleared else list(self.stored.values())


class KeyedList(KeyedState, ListAccess):
    """The list of the current key."""

    def __init__(
        self, table: StateTable, view: StateView, max_parallelism: int, cursor: Cursor, epoch_time: int = 0
    ) -> None:
        super().__init__(table, view, max_parallelism, cursor, epoch_time)
        self._index = KeyCodec(table.sub_key_schema)
        self._entries = StoredEntries(table, view, max_parallelism)
        self._lists: dict[int, _Elements] = {}

    def begin(self, keys: KeyChunk) -> None:
        self._keys = keys
        self._entries.begin(keys)
        self._lists = {}

    def get(self) -> list[Any]:
        here = self._here()
        return list(map(self._fields.copied, here.kept + here.added)) if self._fields.nested else here.kept + here.added

    def append(self, *values: Any, **columns: Any) -> None:
        self._here().added.append(self._fields.value(values, columns))

    def extend(self, elements: Iterable[Any]) -> None:
        self._here().added += [self._fields.one(element) for element in elements]

    def clear(self) -> None:
        here = self._here()
        here.cleared, here.added = True, []

    def __len__(self) -> int:
        here = self._here()
        return len(here.added) + (0 if here.cleared else len(here.stored))

    def changes(self) -> pa.Table | None:
        positions: list[int] = []
        indices: list[bytes] = []
        values: list[Any] = []
        gone: list[bool] = []
        for position, elements in self._lists.items():
            first = 0 if elements.cleared else self._next_index(elements)
            new = [self._index.encode_one([first + offset]) for offset in range(len(elements.added))]
            written = set(new)
            left_over = [index for index in elements.stored if index not in written] if elements.cleared else []
            positions += [position] * (len(new) + len(left_over))
            indices += new + left_over
            values += elements.added + [None] * len(left_over)
            gone += [False] * len(new) + [True] * len(left_over)
        if not positions:
            return None
        return self._delta(np.array(positions), np.array(gone), self._index.decode(indices), values)

    def _next_index(self, elements: _Elements) -> int:
        if self.table.expires is None or not elements.stored:
            # Indices start at 0: elements are only added at the end, or all removed.
            return len(elements.stored)
        last = self._index.decode([next(reversed(elements.stored))])
        return int(column_of(last, LIST_INDEX.name)[0].as_py()) + 1

    def _here(self) -> _Elements:
        position = self._cursor.position
        elements = self._lists.get(position)
        if elements is None:
            elements = self._lists[position] = _Elements(self._entries.all(position))
        return elements


class RefreshedList(KeyedList):
    """The list of the current key; reads extend the time to live of all elements."""

    def get(self) -> list[Any]:
        self._here().read = True
        return super().get()

    def __len__(self) -> int:
        self._here().read = True
        return super().__len__()

    def changes(self) -> pa.Table | None:
        read = [
            (position, index)
            for position, elements in self._lists.items()
            if elements.read and not elements.cleared
            for index in elements.stored
        ]
        if not read:
            return super().changes()
        positions, indices = zip(*read, strict=True)
        return self._with_refreshed(super().changes(), np.array(positions), self._index.decode(list(indices)))


@dataclass(slots=True)
class _Entries:
    """The map of one key, by the encoded own keys: the stored entries read so far, and the written ones."""

    known: dict[bytes, Any] = field(default_factory=dict)
    complete: bool = False
    written: dict[bytes, Any] = field(default_factory=dict)


class KeyedMap(KeyedState, MapAccess):
    """The map of the current key. Entries are looked up one by one; only ``items`` and ``clear`` read the whole map."""

    def __init__(
        self, table: StateTable, view: StateView, max_parallelism: int, cursor: Cursor, epoch_time: int = 0
    ) -> None:
        super().__init__(table, view, max_parallelism, cursor, epoch_time)
        self._sub_keys = SubKeys(table.id, table.sub_key)
        self._stored = StoredEntries(table, view, max_parallelism)
        self._maps: dict[int, _Entries] = {}

    def begin(self, keys: KeyChunk) -> None:
        self._keys = keys
        self._stored.begin(keys)
        self._maps = {}

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._value(self._sub_keys.encode(key))
        return default if value is ABSENT else self._fields.copied(value)

    def contains(self, key: Any) -> bool:
        return self._value(self._sub_keys.encode(key)) is not ABSENT

    def put(self, key: Any, value: Any) -> None:
        self._here().written[self._sub_keys.encode(key)] = self._fields.one(value)

    def remove(self, key: Any) -> None:
        self._here().written[self._sub_keys.encode(key)] = ABSENT

    def items(self) -> list[tuple[Any, Any]]:
        here = self._all()
        merged = {**here.known, **here.written}
        keys = sorted(key for key, value in merged.items() if value is not ABSENT)
        return list(zip(self._decoded(keys), (self._fields.copied(merged[key]) for key in keys), strict=True))

    def clear(self) -> None:
        here = self._all()
        here.written = {key: ABSENT for key, value in here.known.items() if value is not ABSENT}

    def changes(self) -> pa.Table | None:
        positions: list[int] = []
        sub_keys: list[bytes] = []
        values: list[Any] = []
        for position, entries in self._maps.items():
            for key, value in entries.written.items():
                if value is not ABSENT or self._known(position, entries, key) is not ABSENT:
                    positions.append(position)
                    sub_keys.append(key)
                    values.append(value)
        if not positions:
            return None
        gone = np.array([value is ABSENT for value in values])
        return self._delta(np.array(positions), gone, self._sub_keys.codec.decode(sub_keys), values)

    def _value(self, key: bytes) -> Any:
        here = self._here()
        if key in here.written:
            return here.written[key]
        return self._known(self._cursor.position, here, key)

    def _known(self, position: int, entries: _Entries, key: bytes) -> Any:
        if key not in entries.known:
            entries.known[key] = ABSENT if entries.complete else self._stored.one(position, key)
        return entries.known[key]

    def _here(self) -> _Entries:
        return self._maps.setdefault(self._cursor.position, _Entries())

    def _all(self) -> _Entries:
        here = self._here()
        if not here.complete:
            here.known, here.complete = self._stored.all(self._cursor.position), True
        return here

    def _decoded(self, keys: list[bytes]) -> list[Any]:
        table = self._sub_keys.codec.decode(keys)
        if self._sub_keys.single:
            return python_values(column_of(table, table.column_names[0]))
        return named_rows("MapKey", table, table.column_names)


class RefreshedMap(KeyedMap):
    """The map of the current key; reads of entries extend their time to live."""

    def changes(self) -> pa.Table | None:
        # Stored entries in ``known`` were read by the author's code, or overwritten.
        read = [
            (position, key)
            for position, entries in self._maps.items()
            for key, value in entries.known.items()
            if value is not ABSENT and key not in entries.written
        ]
        if not read:
            return super().changes()
        positions, sub_keys = zip(*read, strict=True)
        return self._with_refreshed(super().changes(), np.array(positions), self._sub_keys.codec.decode(list(sub_keys)))


class StoredEntries:
    """Reads entries at the parent epoch, for consecutive chunks of keys.

    Each read has a high fixed cost. When keys are read in order, as is usual, the entries of the next keys are read
    ahead: of 2, 4, 8 .. keys at a time. A key out of order is read alone.
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
        """Start with another chunk of keys."""
        self._keys = keys
        self._ready.clear()
        self._next = 0

    def all(self, position: int) -> dict[bytes, Any]:
        """The entries of the key at ``position`` by their encoded sub-keys, in order. Called once per key."""
        if position not in self._ready:
            self._read(position)
        return self._ready.pop(position)

    def one(self, position: int, sub_key: bytes) -> Any:
        """The value of one entry, or ``ABSENT``."""
        group, key = int(self._keys.groups[position]), self._keys.prefixes[position] + sub_key
        if self._fields.nested:  # their Python values differ from those of Arrow
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
