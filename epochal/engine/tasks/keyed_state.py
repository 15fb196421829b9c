"""What the three accesses to keyed state share: the current key, the write set of a chunk, and its way into a delta."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.engine.tasks.fields import Fields, declared
from epochal.engine.tasks.keys import KeyChunk
from epochal.engine.tasks.values import Unconvertible, arrow_values
from epochal.errors import SchemaError
from epochal.state.access import TableAccess
from epochal.state.table import StateTable

PUT, DELETE = 1, 2


class Cursor:
    """The position, within the chunk, of the key that the author's function is being called for."""

    __slots__ = ("position",)

    def __init__(self) -> None:
        self.position = 0


class KeyedState(ABC):
    """One declared state while a subtask runs, chunk after chunk of keys; no key comes twice.

    ``begin`` a chunk, let the author read and write through the access at each position of the cursor, take ``changes``.
    """

    def __init__(self, table: StateTable, access: TableAccess, cursor: Cursor) -> None:
        self._table = table
        self._access = access
        self._cursor = cursor
        self._fields = Fields(table)
        self._keys: KeyChunk

    @abstractmethod
    def begin(self, keys: KeyChunk) -> None:
        """Forget the last chunk and start with ``keys``."""

    @abstractmethod
    def changes(self) -> pa.Table | None:
        """What the chunk changed, with ``StateTable.delta_schema``, one row per full key; ``None`` for nothing."""

    def _delta(
        self, positions: Sequence[int] | np.ndarray[Any, Any], deleted: Any, sub_key: pa.Table | None, values: Sequence[Any]
    ) -> pa.Table:
        """One row per change: the key at ``positions[i]``, its sub-key row i, ``values[i]`` unless ``deleted[i]``."""
        rows = pa.array(positions, pa.int64())
        operation = np.where(np.asarray(deleted, bool), "delete", "put").tolist()
        arrays = [pa.array(self._keys.groups[np.asarray(positions, np.int64)], pa.int32()), pa.array(operation, pa.string())]
        taken = self._keys.table.take(rows)
        arrays += [taken.column(column.name) for column in self._table.key]
        if sub_key is not None:
            arrays += [sub_key.column(column.name) for column in self._table.sub_key]
        arrays += [
            self._values(column.name, type, column_values, positions)
            for column, type, column_values in zip(
                self._table.value, self._table.value_schema.types, self._fields.columns(values), strict=True
            )
        ]
        return pa.Table.from_arrays(arrays, schema=self._table.delta_schema)

    def _values(self, column: str, type: pa.DataType, values: Sequence[Any], positions: Any) -> pa.Array:
        try:
            return arrow_values(values, type)
        except Unconvertible as wrong:
            raise SchemaError(
                f"State {self._table.id!r} was given {wrong.shown} ({wrong.found}) for column {column!r} at key "
                f"{self._keys.shown(int(positions[wrong.position]))}: {wrong}. "
                f"A value of it is ({declared(self._table.value)}): convert before set."
            ) from None
