"""Map state: each entry a row of the state table, under the map's own key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.contracts.state import StateView
from epochal.declarations.state import MapAccess
from epochal.state.table import StateTable
from epochal.tasks.entries import ABSENT, StoredEntries
from epochal.tasks.fields import SubKeys
from epochal.tasks.keyed_state import Cursor, KeyedState
from epochal.tasks.keys import KeyChunk, named_rows
from epochal.tasks.values import column_of, python_values


@dataclass(slots=True)
class _Entries:
    """The map of one key, by the bytes of its own keys: what is known of the stored entries, what was written over."""

    known: dict[bytes, Any] = field(default_factory=dict)
    complete: bool = False
    written: dict[bytes, Any] = field(default_factory=dict)


class KeyedMap(KeyedState, MapAccess):
    """The current key's map. Entries are looked up one by one; only ``items`` and ``clear`` read the whole map."""

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
    """The current key's map, the entries of which live on when they are read."""

    def changes(self) -> pa.Table | None:
        # What is known of stored entries was asked for by the author, or is written over.
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
