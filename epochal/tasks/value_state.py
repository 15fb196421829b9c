"""Value state: read in bulk for a chunk of keys, kept as Python values, written back in bulk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from epochal.contracts.state import StateView
from epochal.declarations.state import ValueAccess
from epochal.state.access import TableAccess
from epochal.state.table import StateTable
from epochal.tasks.keyed_state import DELETE, PUT, READ, Cursor, KeyedState
from epochal.tasks.keys import KeyChunk, named_rows
from epochal.tasks.values import column_of, python_values


class KeyedValue(KeyedState, ValueAccess):
    """The current key's value."""

    def __init__(
        self, table: StateTable, view: StateView, max_parallelism: int, cursor: Cursor, epoch_time: int = 0
    ) -> None:
        super().__init__(table, view, max_parallelism, cursor, epoch_time)
        self._access = TableAccess(table, view, max_parallelism)

    def begin(self, keys: KeyChunk) -> None:
        self._keys = keys
        self._touched = bytearray(len(keys))
        self._found, stored = self._access.get(keys.table, keys.groups)
        self._current = self._values(stored)

    def get(self) -> Any:
        return self._fields.copied(self._current[self._cursor.position])

    def set(self, *values: Any, **columns: Any) -> None:
        position = self._cursor.position
        self._current[position] = self._fields.value(values, columns)
        self._touched[position] = PUT

    def clear(self) -> None:
        position = self._cursor.position
        self._current[position] = None
        self._touched[position] = DELETE

    def changes(self) -> pa.Table | None:
        touched = np.frombuffer(self._touched, np.uint8)
        positions = np.flatnonzero((touched == PUT) | ((touched == DELETE) & self._found))
        if not len(positions):
            return None
        values = [self._current[position] for position in positions.tolist()]
        return self._delta(positions, touched[positions] == DELETE, None, values)

    def _values(self, stored: pa.Table) -> list[Any]:
        """The plain value or a named tuple per key, ``None`` where there is none."""
        if not self._found.any():
            return [None] * len(self._keys)
        if self._fields.single:
            return python_values(column_of(stored, self._fields.names[0]))
        values = named_rows("Value", stored, self._fields.names)
        for absent in np.flatnonzero(~self._found).tolist():
            values[absent] = None
        return values


class RefreshedValue(KeyedValue):
    """The current key's value, which lives on when it is read."""

    def get(self) -> Any:
        position = self._cursor.position
        self._touched[position] = self._touched[position] or READ
        return super().get()

    def changes(self) -> pa.Table | None:
        touched = np.frombuffer(self._touched, np.uint8)
        return self._with_refreshed(super().changes(), np.flatnonzero((touched == READ) & self._found), None)
