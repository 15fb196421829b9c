"""``process_batch``: the author's function once per subtask and epoch, Arrow in, Arrow out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.contracts.state import KeyGroups
from epochal.declarations.keyed import BatchFunction
from epochal.declarations.state import declared_states
from epochal.errors import InvalidKey, SchemaError
from epochal.operators.process.author_object import read_only
from epochal.operators.process.contexts import context_of
from epochal.operators.process.output_rows import checked_tables, schema_text
from epochal.state.access import TableAccess
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import key_groups, subtask_of
from epochal.state.table import StateTable
from epochal.state.types import with_spark_types
from epochal.tasks.keys import key_text
from epochal.tasks.operator import Ownership, Subtask
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.task_output import OutputBatch, SideRows
from epochal.tasks.values import column_of

Found = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ProcessBatchWork:
    """The work of ``process_batch``: the author's function, once per subtask and epoch, over Arrow tables.

    ``columns``: the names of the input columns, in the author's order. The function is called in every epoch, also
    without rows. Raises ``AuthorError`` for errors of the function, ``SchemaError`` and ``InvalidKey`` for results that
    do not fit.
    """

    function: BatchFunction
    columns: tuple[str, ...]
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        batch = pa.Table.from_batches(list(rows)).select(self.columns).combine_chunks()
        states = self._states(subtask)
        context = context_of(subtask)
        where = f"Operator {subtask.operator!r}"
        with AuthorCall(lambda: where), read_only(self.function, where):
            result = self.function.process_batch(batch, states, context)
            if isinstance(result, GeneratorType):
                result = list(result)
        output = list(checked_tables(subtask.operator, result, subtask.output, subtask.sides))
        for state in states.values():
            changes = state.changes()
            if changes is not None:
                subtask.transaction.stage(state.table.id, changes)
        for side, table in output:
            for rows_given in table.to_batches():
                yield rows_given if side is None else SideRows(side, rows_given)

    def _states(self, subtask: Subtask) -> dict[str, SubtaskBatchState]:
        tables = {table.id: table for table in subtask.tables}
        states = {}
        for name in declared_states(type(self.function)):
            table = tables[f"{subtask.operator}.{name}"]
            access = TableAccess(table, subtask.transaction.view(table.id), subtask.max_parallelism)
            states[name] = SubtaskBatchState(table, access, subtask.ownership)
        return states


@dataclass
class _WriteSet:
    """Changes in order, and for each encoded key the row of its last change."""

    tables: list[pa.Table] = field(default_factory=list)
    last: dict[bytes, int] = field(default_factory=dict)
    rows: int = 0

    def add(self, keys: list[bytes], changes: pa.Table) -> None:
        self.last.update(zip(keys, range(self.rows, self.rows + len(keys)), strict=True))
        self.tables.append(changes)
        self.rows += len(keys)

    def table(self) -> pa.Table:
        return pa.concat_tables(self.tables).combine_chunks()


class SubtaskBatchState:
    """One state table of one subtask, with many keys per call. Implements
    :class:`epochal.declarations.keyed.BatchState`.

    Reads return the changes of the same epoch. Raises ``SchemaError`` for wrong columns, ``InvalidKey`` for null in a
    map's own key, for a duplicate key in one put, and for a key that belongs to another subtask.
    """

    def __init__(self, table: StateTable, access: TableAccess, ownership: Ownership) -> None:
        self.table = table
        self._access = access
        self._ownership = ownership
        self._codec = KeyCodec(table.key_schema)
        self._writes = _WriteSet()

    def get(self, keys: pa.Table) -> tuple[Found, pa.Table]:
        keys = self._fit(keys, self.table.key_schema, "get")
        found, values = self._access.get(keys, self._groups(keys))
        if not self._writes.last:
            return found, values
        encoded = self._codec.encode(keys)
        written = np.fromiter((self._writes.last.get(key, -1) for key in encoded), np.int64, len(encoded))
        over = self._writes.table()
        puts = np.asarray(column_of(over, "_op").to_pylist()) == "put"
        both = pa.concat_tables([values, over.select(values.column_names).cast(values.schema)])
        rows = np.where(written >= 0, written + values.num_rows, np.arange(values.num_rows))
        return np.where(written >= 0, puts[written], found), both.take(pa.array(rows))

    def put(self, rows: pa.Table) -> None:
        schema = pa.schema([*self.table.key_schema, *self.table.value_schema])
        rows = self._fit(rows, schema, "put")
        self._write("put", rows, rows.select(self.table.value_schema.names).columns)

    def delete(self, keys: pa.Table) -> None:
        keys = self._fit(keys, self.table.key_schema, "delete")
        self._write("delete", keys, [pa.nulls(keys.num_rows, type) for type in self.table.value_schema.types])

    def changes(self) -> pa.Table | None:
        """The last change of each key, with ``StateTable.delta_schema``; ``None`` if there are none."""
        if not self._writes.rows:
            return None
        changes = self._writes.table()
        if len(self._writes.last) < changes.num_rows:
            changes = changes.take(pa.array(sorted(self._writes.last.values())))
        deleted = np.asarray(column_of(changes, "_op").to_pylist()) == "delete"
        if deleted.any():
            stored, _ = self._access.get(
                changes.select(self.table.key_schema.names), column_of(changes, "_kg").to_numpy()
            )
            changes = changes.filter(pa.array(~deleted | stored))
        return changes if changes.num_rows else None

    def _write(self, operation: str, rows: pa.Table, values: list[Any]) -> None:
        if not rows.num_rows:
            return
        keys = self._codec.encode(rows)
        if len(set(keys)) < len(keys):
            raise InvalidKey(f"State {self.table.id!r}: {operation} received a key twice; pass each key once.")
        operations = pa.array([operation], pa.string()).take(pa.array(np.zeros(rows.num_rows, np.int64)))
        arrays = [pa.array(self._groups(rows)), operations, *rows.select(self.table.key_schema.names).columns, *values]
        self._writes.add(keys, pa.Table.from_arrays(arrays, schema=self.table.delta_schema))

    def _groups(self, keys: pa.Table) -> KeyGroups:
        groups = key_groups(keys, self.table.owner_schema, self._ownership.max_parallelism)
        foreign = np.flatnonzero(subtask_of(groups, self._ownership.parallelism) != self._ownership.subtask)
        if len(foreign):
            row = int(foreign[0])
            values = (column_of(keys, column.name)[row].as_py() for column in self.table.key)
            raise InvalidKey(
                f"State {self.table.id!r}: key {key_text(self.table.key, values)} belongs to another subtask than "
                f"{self._ownership.subtask}. Read and write only keys of the rows that the function received."
            )
        return groups

    def _fit(self, rows: Any, schema: pa.Schema, call: str) -> pa.Table:
        what = f"State {self.table.id!r}: {call} takes a pyarrow.Table with the columns {schema_text(schema)}"
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if not isinstance(rows, pa.Table):
            raise SchemaError(f"{what}; it received a {type(rows).__name__}.")
        if sorted(rows.column_names) != sorted(schema.names):
            raise SchemaError(f"{what}; it received {', '.join(rows.column_names) or 'no column'}.")
        for name in self.table.sub_key_schema.names:
            if rows.column(name).null_count:
                raise InvalidKey(
                    f"State {self.table.id!r}: {call} received null in column {name!r}, which is part of the state's "
                    "own key and cannot be null."
                )
        try:
            arrays = [rows.column(each.name).cast(each.type) for each in schema]
        except pa.ArrowException as error:
            raise SchemaError(f"{what}; it received {schema_text(rows.schema)}: {with_spark_types(error)}.") from None
        return pa.Table.from_arrays(arrays, schema=schema)
