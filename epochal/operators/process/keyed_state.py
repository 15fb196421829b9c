"""Access to keyed state in a subtask: the current key, the changes of a chunk, value state, and times to live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.conditions import BEGINNING
from epochal.contracts.state import StateView
from epochal.declarations.state import ValueAccess
from epochal.state.access import TableAccess
from epochal.state.expiry import Expiry, microseconds
from epochal.state.table import TOUCHED, StateKind, StateTable
from epochal.tasks.keys import KeyChunk, named_rows
from epochal.tasks.state_values import Fields, value_column
from epochal.tasks.values import column_of, python_values

PUT, DELETE, READ = 1, 2, 3
Positions = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]
READS_PER_LIFE = 10
"""The maximum number of times that reads rewrite a row within its time to live."""


class Cursor:
    """The position, within the chunk, of the key of the current call of the author's function.

    ``times``: the event times of the calls of each key of the chunk, if a state expires by event time.
    """

    __slots__ = ("position", "times")

    def __init__(self) -> None:
        self.position = 0
        self.times: Times | None = None


class KeyedState(ABC):
    """One declared state in a subtask, for consecutive chunks of keys; each key occurs once.

    ``begin`` a chunk, let the author's code read and write at each position of the cursor, then take ``changes``.
    """

    def __init__(
        self, table: StateTable, view: StateView, max_parallelism: int, cursor: Cursor, epoch_time: int = 0
    ) -> None:
        self.table = table
        self._cursor = cursor
        self._fields = Fields(table.id, table.visible)
        self._epoch_time = epoch_time
        self._touched_at = None if table.expires is None else Touched(table, table.expires, view, max_parallelism)
        self._keys: KeyChunk

    @abstractmethod
    def begin(self, keys: KeyChunk) -> None:
        """Discard the previous chunk and start with ``keys``."""

    @abstractmethod
    def changes(self) -> pa.Table | None:
        """The changes of the chunk, with ``StateTable.delta_schema``, one row per full key; ``None`` if there are
        none."""

    def _delta(
        self, positions: Positions, deleted: npt.NDArray[np.bool_], sub_key: pa.Table | None, values: Sequence[Any]
    ) -> pa.Table:
        """One row per change: key ``positions[i]``, row i of ``sub_key``, ``values[i]`` unless ``deleted[i]``."""
        keys = self._keys.table.take(pa.array(positions))
        arrays = [pa.array(self._keys.groups[positions]), pa.array(np.where(deleted, "delete", "put").tolist())]
        arrays += [keys.column(column.name) for column in self.table.key]
        if sub_key is not None:
            arrays += [sub_key.column(column.name) for column in self.table.sub_key]
        columns = self._fields.columns([None if gone else value for gone, value in zip(deleted, values, strict=True)])
        key_columns, schema = arrays[2:], self.table.value_schema
        for column, name in zip(columns, self._fields.names, strict=True):
            at = lambda row: self._at(int(positions[row]))  # noqa: E731
            arrays.append(value_column(self.table, schema.field(name), column, at))
        if self._touched_at is not None:
            full_keys = pa.Table.from_arrays(key_columns, schema=self.table.key_schema)
            touched = self._touched_at.written(self._keys, full_keys, positions, self._times(positions))
            arrays.append(pc.if_else(pa.array(deleted), pa.scalar(None, touched.type), touched))
        return pa.Table.from_arrays(arrays, schema=self.table.delta_schema)

    def _with_refreshed(
        self, delta: pa.Table | None, positions: Positions, sub_keys: pa.Table | None
    ) -> pa.Table | None:
        """``delta`` and the rows that were only read: key ``positions[i]``, row i of ``sub_keys``."""
        if self._touched_at is None or not len(positions):
            return delta
        refreshed = self._touched_at.refreshed(self._keys, positions, sub_keys, self._times(positions))
        if delta is None or refreshed is None:
            return refreshed if delta is None else delta
        return pa.concat_tables([delta, refreshed])

    def _times(self, positions: Positions) -> Times:
        if self.table.expires is not None and self.table.expires.clock == "event" and self._cursor.times is not None:
            times = self._cursor.times[positions]
            return np.where(times == BEGINNING, self._epoch_time, times)  # no event time is known yet
        return np.full(len(positions), self._epoch_time)

    def _at(self, position: int) -> str:
        return f" at key {self._keys.shown(position)}" if self.table.scope.has_key else ""


class KeyedValue(KeyedState, ValueAccess):
    """The value of the current key. Values are read in bulk for a chunk, kept as Python values, and written in bulk."""

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
        """The plain value or a named tuple per key; ``None`` if it has no value."""
        if not self._found.any():
            return [None] * len(self._keys)
        if self._fields.single:
            return python_values(column_of(stored, self._fields.names[0]))
        values = named_rows("Value", stored, self._fields.names)
        for absent in np.flatnonzero(~self._found).tolist():
            values[absent] = None
        return values


class RefreshedValue(KeyedValue):
    """The value of the current key; reads extend its time to live."""

    def get(self) -> Any:
        position = self._cursor.position
        self._touched[position] = self._touched[position] or READ
        return super().get()

    def changes(self) -> pa.Table | None:
        touched = np.frombuffer(self._touched, np.uint8)
        return self._with_refreshed(super().changes(), np.flatnonzero((touched == READ) & self._found), None)


class Touched:
    """The times of rows of a state with a time to live, for consecutive chunks of keys. ``times`` in methods: the times
    of the calls of each key, in microseconds."""

    def __init__(self, table: StateTable, expires: Expiry, view: StateView, max_parallelism: int) -> None:
        self._table = table
        self._access = TableAccess(table, view, max_parallelism)
        self._may_go_back = expires.clock == "event" and table.kind is not StateKind.LIST
        self._type = table.value_schema.field(TOUCHED.name).type
        self._between = max(1, expires.after // READS_PER_LIFE)

    def written(self, keys: KeyChunk, full_keys: pa.Table, positions: Positions, times: Times) -> pa.Array:
        """The time column of written rows. A write at an earlier event time than the stored one keeps the stored time;
        elements of a list are written once."""
        if self._may_go_back:
            _, values = self._access.get(full_keys, keys.groups[positions])
            times = np.maximum(times, self._stored(values))
        return pa.array(times).cast(self._type)

    def refreshed(
        self, keys: KeyChunk, positions: Positions, sub_keys: pa.Table | None, times: Times
    ) -> pa.Table | None:
        """Unchanged rows with their new time, of the rows that were only read and whose time is old enough.

        They have ``StateTable.delta_schema``. ``None`` if there are none.
        """
        columns = [*keys.table.take(pa.array(positions)).columns, *(() if sub_keys is None else sub_keys.columns)]
        full_keys = pa.Table.from_arrays(columns, schema=self._table.key_schema)
        groups = keys.groups[positions]
        found, values = self._access.get(full_keys, groups)
        due = found & (self._stored(values) <= times - self._between)
        if not due.any():
            return None
        mask = pa.array(due)
        now = pa.array(times[due]).cast(self._type)
        place = values.column_names.index(TOUCHED.name)
        kept = values.filter(mask).set_column(place, TOUCHED.name, now)
        puts = pa.repeat(pa.scalar("put"), len(now))
        arrays = [pa.array(groups[due]), puts, *full_keys.filter(mask).columns, *kept.columns]
        return pa.Table.from_arrays(arrays, schema=self._table.delta_schema)

    def _stored(self, values: pa.Table) -> Times:
        times: Times = pc.fill_null(microseconds(values.column(TOUCHED.name)), BEGINNING).to_numpy()
        return times
