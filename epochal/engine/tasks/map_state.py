"""Map state: each entry a row of the state table, under the map's own key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from epochal.engine.tasks.entries import StoredEntries
from epochal.engine.tasks.fields import SubKeys
from epochal.engine.tasks.keyed_state import Cursor, KeyedState
from epochal.engine.tasks.keys import KeyChunk, named_rows
from epochal.engine.tasks.values import column_of, python_values
from epochal.pipeline.state import MapAccess
from epochal.state.access import TableAccess
from epochal.state.table import StateTable

_ABSENT = object()


@dataclass(slots=True)
class _Entries:
    """The map of one key: its stored entries by the bytes of their keys, and what was written over them."""

    stored: dict[bytes, Any]
    written: dict[bytes, Any] = field(default_factory=dict)

    def get(self, key: bytes) -> Any:
        value = self.written.get(key, self)
        return self.stored.get(key, _ABSENT) if value is self else value

    def all(self) -> dict[bytes, Any]:
        merged = self.stored | self.written if self.written else self.stored
        return {key: merged[key] for key in sorted(merged) if merged[key] is not _ABSENT}


class KeyedMap(KeyedState, MapAccess):
    def __init__(self, table: StateTable, access: TableAccess, cursor: Cursor) -> None:
        super().__init__(table, access, cursor)
        self._sub_keys = SubKeys(table)
        self._entries = StoredEntries(access, self._fields)
        self._maps: dict[int, _Entries] = {}

    def begin(self, keys: KeyChunk) -> None:
        self._keys = keys
        self._entries.begin(keys)
        self._maps = {}

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._here().get(self._sub_keys.encode(key))
        return default if value is _ABSENT else value

    def put(self, key: Any, value: Any) -> None:
        self._here().written[self._sub_keys.encode(key)] = self._fields.one(value)

    def remove(self, key: Any) -> None:
        self._here().written[self._sub_keys.encode(key)] = _ABSENT

    def contains(self, key: Any) -> bool:
        return self._here().get(self._sub_keys.encode(key)) is not _ABSENT

    def items(self) -> list[tuple[Any, Any]]:
        entries = self._here().all()
        return list(zip(self._decoded(list(entries)), entries.values(), strict=True))

    def clear(self) -> None:
        here = self._here()
        here.written = dict.fromkeys(here.stored, _ABSENT)

    def changes(self) -> pa.Table | None:
        positions: list[int] = []
        sub_keys: list[bytes] = []
        values: list[Any] = []
        for position, entries in self._maps.items():
            for key, value in entries.written.items():
                if value is not _ABSENT or key in entries.stored:
                    positions.append(position)
                    sub_keys.append(key)
                    values.append(value)
        if not positions:
            return None
        deleted = [value is _ABSENT for value in values]
        plain = [None if value is _ABSENT else value for value in values]
        return self._delta(positions, deleted, self._sub_keys.codec.decode(sub_keys), plain)

    def _here(self) -> _Entries:
        position = self._cursor.position
        entries = self._maps.get(position)
        if entries is None:
            entries = self._maps[position] = _Entries(dict(self._entries.of(position)))
        return entries

    def _decoded(self, keys: list[bytes]) -> list[Any]:
        if not keys:
            return []
        table = self._sub_keys.codec.decode(keys)
        if self._sub_keys.single:
            return python_values(column_of(table, table.column_names[0]))
        return named_rows("MapKey", table, table.column_names)
