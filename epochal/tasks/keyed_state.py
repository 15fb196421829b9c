"""What the three accesses to keyed state share: the current key, the write set of a chunk, and its way into a delta."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.conditions import BEGINNING
from epochal.contracts.state import StateView
from epochal.errors import SchemaError
from epochal.state.table import StateTable
from epochal.tasks.fields import Fields, declared
from epochal.tasks.keys import KeyChunk
from epochal.tasks.touched import Positions, Times, Touched
from epochal.tasks.values import Unconvertible, arrow_values

PUT, DELETE, READ = 1, 2, 3


class Cursor:
    """The position, within the chunk, of the key that the author's function is being called for.

    ``times``: of each key of the chunk the event time that it is called at, where a state expires by it.
    """

    __slots__ = ("position", "times")

    def __init__(self) -> None:
        self.position = 0
        self.times: Times | None = None


class KeyedState(ABC):
    """One declared state while a subtask runs, chunk after chunk of keys; no key comes twice.

    ``begin`` a chunk, let the author read and write through the access at each position of the cursor, then take
    ``changes``.
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
        """Forget the last chunk and start with ``keys``."""

    @abstractmethod
    def changes(self) -> pa.Table | None:
        """What the chunk changed, with ``StateTable.delta_schema``, one row per full key; ``None`` for nothing."""

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
        """``delta`` and the rows that were read and not written: key ``positions[i]``, row i of ``sub_keys``."""
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


def value_column(table: StateTable, field: pa.Field, values: Sequence[Any], at: Callable[[int], str]) -> pa.Array:
    """What an author wrote for one value column. Raises ``SchemaError`` for a value that does not fit; ``at`` says, of
    a row, where it was to go."""
    try:
        return arrow_values(values, field.type)
    except Unconvertible as wrong:
        raise SchemaError(
            f"Operator {table.operator!r}: state {table.id!r} was given {wrong.shown} ({wrong.found}) for column "
            f"{field.name!r}{at(wrong.position)}: {wrong}. It is declared as ({declared(table.visible)}): convert the "
            "value first."
        ) from None
