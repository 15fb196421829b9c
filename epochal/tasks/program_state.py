"""The state of a program's state element in a task: the elements of the keys that come, in one look-up, and what has
changed of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochal.programs.declaration import StateElement
from epochal.programs.state import Key, State
from epochal.state.access import TableAccess
from epochal.state.table import StateTable
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import delta_rows


class LoadedState:
    """The elements of some keys of partitioned state, or all of an instance of partial state; and the changes that are
    made to them."""

    def __init__(self, element: StateElement, table: StateTable, subtask: Subtask) -> None:
        self.state: State = element.make()
        self._element, self._table, self._subtask = element, table, subtask
        self._access = TableAccess(table, subtask.transaction.view(table.id), subtask.max_parallelism)
        self._loaded: list[Key] = []
        self._instance: tuple[int, ...] = () if table.scope.has_key else (subtask.subtask,)

    def load(self, keys: Sequence[pa.Array]) -> None:
        """The elements of all of these keys, in one look-up. A key may be there twice, and nulls, which are none."""
        field = self._table.owner_schema.field(0)
        chunks = [
            chunk for array in keys for chunk in (array.chunks if isinstance(array, pa.ChunkedArray) else [array])
        ]
        distinct = pc.unique(pa.chunked_array(chunks, field.type)).drop_null()
        if not len(distinct):
            return
        asked = pa.table([distinct], schema=self._table.owner_schema)
        if self._table.sub_key:
            entries = self._access.entries(asked)
            *sub_keys, values = (column.to_pylist() for column in entries.rows.columns)
            owners = [] if self._instance else [distinct.take(pa.array(entries.owner)).to_pylist()]
            self._loaded = list(zip(*owners, *sub_keys, strict=True))
        else:
            found, rows = self._access.get(asked)
            present = pa.array(found)
            self._loaded = [(key,) for key in distinct.filter(present).to_pylist()]
            values = rows.column(0).filter(present).to_pylist()
        from_row = self._element.model.from_row
        self.state.load(zip(self._loaded, map(from_row, values), strict=True))

    def load_instance(self) -> None:
        """All of the subtask's instance of partial state."""
        self.load([pa.array(self._instance, self._table.owner_schema.field(0).type)])

    def stage(self) -> None:
        """Hand what has changed to the transaction."""
        puts, deletes = self._changes()
        for operation, rows in (("put", puts), ("delete", deletes)):
            if rows:
                self._subtask.transaction.stage(self._table.id, self._delta(operation, rows))

    def _changes(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        puts, gone = [], []
        to_row = self._element.model.to_row
        for key, value in self.state.changes():
            if value is None:
                gone.append(key)
            else:
                puts.append((*key, to_row(value)))
        there = set(self._loaded) if gone else set()
        width = len(self._table.full_key) - len(self._instance)
        return sorted(puts, key=lambda row: row[:width]), sorted(key for key in gone if key in there)

    def _delta(self, operation: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        fields = [*self._table.key_schema, *self._table.value_schema]
        columns = [[number] * len(rows) for number in self._instance] + list(zip(*rows, strict=True))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=False)]
        keys = pa.Table.from_arrays(arrays[: len(self._table.key_schema)], schema=self._table.key_schema)
        groups = self._table.key_groups(keys, self._subtask.max_parallelism)
        return delta_rows(self._table, groups, operation, arrays)
