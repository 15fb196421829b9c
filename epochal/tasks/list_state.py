"""List state: each element a row of the state table, under its position ``_index``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.contracts.state import StateView
from epochal.declarations.state import LIST_INDEX, ListAccess
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable
from epochal.tasks.entries import StoredEntries
from epochal.tasks.keyed_state import Cursor, KeyedState
from epochal.tasks.keys import KeyChunk
from epochal.tasks.values import column_of


@dataclass(slots=True)
class _Elements:
    """The list of one key: what is stored, unless it was cleared, then what was added."""

    stored: dict[bytes, Any]
    added: list[Any] = field(default_factory=list)
    cleared: bool = False
    read: bool = False

    @property
    def kept(self) -> list[Any]:
        return [] if self.cleared else list(self.stored.values())


class KeyedList(KeyedState, ListAccess):
    """The current key's list."""

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
            # Indices run from 0: elements are only added at the end, or all removed.
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
    """The current key's list, all elements of which live on when it is read."""

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
