"""List state: each element a row of the state table, under its position ``_index``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from epochal.engine.tasks.entries import StoredEntries
from epochal.engine.tasks.fields import SubKeys
from epochal.engine.tasks.keyed_state import Cursor, KeyedState
from epochal.engine.tasks.keys import KeyChunk
from epochal.pipeline.state import ListAccess
from epochal.state.access import TableAccess
from epochal.state.table import StateTable


@dataclass(slots=True)
class _Elements:
    """The list of one key: what is stored, unless it was cleared, then what was added."""

    indices: list[bytes]
    stored: list[Any]
    first_new: int
    cleared: bool = False
    added: list[Any] = field(default_factory=list)

    @property
    def all(self) -> list[Any]:
        return list(self.added) if self.cleared else self.stored + self.added


class KeyedList(KeyedState, ListAccess):
    def __init__(self, table: StateTable, access: TableAccess, cursor: Cursor) -> None:
        super().__init__(table, access, cursor)
        self._index = SubKeys(table)
        self._entries = StoredEntries(access, self._fields)
        self._lists: dict[int, _Elements] = {}

    def begin(self, keys: KeyChunk) -> None:
        self._keys = keys
        self._entries.begin(keys)
        self._lists = {}

    def get(self) -> list[Any]:
        return self._here().all

    def append(self, *values: Any, **columns: Any) -> None:
        self._here().added.append(self._fields.value(values, columns))

    def extend(self, elements: Iterable[Any]) -> None:
        self._here().added += [self._fields.one(element) for element in elements]

    def clear(self) -> None:
        here = self._here()
        here.cleared, here.first_new, here.added = True, 0, []

    def __len__(self) -> int:
        here = self._here()
        return len(here.added) + (0 if here.cleared else len(here.stored))

    def changes(self) -> pa.Table | None:
        positions: list[int] = []
        indices: list[bytes] = []
        deleted: list[bool] = []
        values: list[Any] = []
        for position, elements in self._lists.items():
            new = [self._index.encode(elements.first_new + offset) for offset in range(len(elements.added))]
            gone = sorted(set(elements.indices) - set(new)) if elements.cleared else []
            positions += [position] * (len(gone) + len(new))
            indices += gone + new
            deleted += [True] * len(gone) + [False] * len(new)
            values += [None] * len(gone) + elements.added
        if not positions:
            return None
        return self._delta(positions, deleted, self._index.codec.decode(indices), values)

    def _here(self) -> _Elements:
        position = self._cursor.position
        elements = self._lists.get(position)
        if elements is None:
            entries = self._entries.of(position)
            last = self._index.codec.decode([entries[-1][0]]).column(0)[0].as_py() if entries else -1
            elements = _Elements([index for index, _ in entries], [value for _, value in entries], last + 1)
            self._lists[position] = elements
        return elements
