"""How a task that keeps state by key begins, its slice in one piece and the keys of the rows as state has them; and how
it ends, with the changes that it stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.state.access import Entries, TableAccess
from epochal.state.column_bytes import Mask
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import Groups
from epochal.state.table import StateTable
from epochal.tasks.keys import key_shown
from epochal.tasks.operator import Subtask
from epochal.tasks.row_digests import row_digests
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.values import column_of

Integers = npt.NDArray[np.int64]


def gathered(rows: Iterable[pa.RecordBatch]) -> pa.Table:
    """All rows of a subtask in one piece."""
    return pa.Table.from_batches(list(rows)).combine_chunks()


@dataclass(frozen=True)
class SliceKeys:
    """The keys of the rows of a slice as a state table has them. ``rows``: their columns, in its types; ``groups``:
    their key groups, int32; ``access``: to the table at the parent epoch.
    """

    table: StateTable
    rows: pa.Table
    groups: pa.Array
    access: TableAccess

    @classmethod
    def of(cls, subtask: Subtask, table: StateTable, rows: pa.Table, named: Sequence[str] | None = None) -> Self:
        """The full keys of ``rows``; the operator's keys alone where the table has keys of its own beside (a map).

        ``named``: how the rows call them, where they do not as the table does.
        """
        schema = table.owner_schema if table.sub_key else table.key_schema
        keys = rows.select(schema.names if named is None else list(named))
        if named is not None:
            keys = keys.rename_columns(schema.names)
        access = TableAccess(table, subtask.transaction.view(table.id), subtask.max_parallelism)
        return cls(table, keys.cast(schema), column_of(rows, KEY_GROUP), access)

    @classmethod
    def living(cls, subtask: Subtask, table: StateTable, rows: pa.Table) -> Self:
        """As :meth:`of`, without what has lived its time when the epoch opens."""
        access = TableAccess(table, subtask.living(table), subtask.max_parallelism)
        keys = rows.select(table.key_schema.names).cast(table.key_schema)
        return cls(table, keys, column_of(rows, KEY_GROUP), access)

    @cached_property
    def encoded(self) -> pa.BinaryArray:
        """The bytes by which state knows the full keys."""
        return self.access.encoded(self.rows)

    def stored(self) -> tuple[Mask, pa.Table]:
        """As :meth:`TableAccess.get` of the full keys."""
        return self.access.get_encoded(self.encoded, self.groups.to_numpy(zero_copy_only=False))

    def shown(self, row: int) -> str:
        """The key of a row for a message."""
        return key_shown(self.rows, row)

    def entries(self) -> Entries:
        """As :meth:`TableAccess.entries` of the operator's keys."""
        return self.access.entries(self.rows, self.groups.to_numpy(zero_copy_only=False))

    def filter(self, mask: pa.BooleanArray) -> SliceKeys:
        return SliceKeys(self.table, self.rows.filter(mask), self.groups.filter(mask), self.access)

    def changes(self, operation: str | pa.StringArray, values: Sequence[Any] = ()) -> pa.Table:
        """As :func:`delta_rows` of these keys, which are full ones."""
        return delta_rows(self.table, self.groups, operation, [*self.rows.columns, *values])


def delta_rows(
    table: StateTable, groups: Groups | pa.Array, operation: str | pa.StringArray, columns: Sequence[Any]
) -> pa.Table:
    """Changes to be staged, as ``table.delta_schema`` has them.

    ``operation``: ``put`` or ``delete``, or an array of them; ``columns``: those of the full key and, but for
    ``delete``, the values.
    """
    count = len(groups)
    absent = [pa.nulls(count, field.type) for field in list(table.delta_schema)[2 + len(columns) :]]
    operations = pa.repeat(pa.scalar(operation), count) if isinstance(operation, str) else operation
    of_rows = groups if isinstance(groups, pa.Array) else pa.array(groups, pa.int32())
    return pa.Table.from_arrays([of_rows, operations, *columns, *absent], schema=table.delta_schema)


def numbered_keys(keys: pa.Table) -> tuple[Integers, Integers]:
    """Of each row the number of its key, from 0, and of each key a row that has it; null is a key like others."""
    if keys.num_columns == 1:
        column = column_of(keys, keys.column_names[0])
    else:
        column = KeyCodec(keys.schema).encode_array(keys)
    encoded = column.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    rows = np.empty(len(encoded.dictionary), np.int64)
    rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, rows


def in_order(rows: pa.Table, codes: Integers, first: tuple[str, ...], descending: bool = False) -> Integers:
    """The rows' positions by key, then by the columns ``first``, then by all others: their order is that of the rows
    alone, nulls last. Columns that have no order are compared by a digest. Equal rows stay in the order that they have.

    ``descending``: of the columns ``first``, in which NaN is greater than all numbers, as in Spark.
    """
    direction = "descending" if descending else "ascending"
    columns: list[tuple[Any, str]] = [(pa.array(codes), "ascending")]
    for name in first:
        if pa.types.is_floating(rows[name].type):
            columns.append((pc.is_nan(rows[name]), direction))
        columns.append((rows[name], direction))
    others = [field for field in rows.schema if field.name not in first]
    columns += [(rows[field.name], "ascending") for field in others if not pa.types.is_nested(field.type)]
    nested = [field for field in others if pa.types.is_nested(field.type)]
    if nested:
        columns.append((row_digests(rows, pa.schema(nested)), "ascending"))
    table = pa.table({f"c{number}": column for number, (column, _) in enumerate(columns)})
    keys = [(f"c{number}", each) for number, (_, each) in enumerate(columns)]
    order: Integers = pc.sort_indices(table, keys).to_numpy().astype(np.int64)
    return order


def key_numbers(keys: pa.Table) -> Integers:
    """Equal numbers for equal keys, from 0, in the order in which they first come."""
    one = column_of(keys, keys.column_names[0]) if keys.num_columns == 1 else KeyCodec(keys.schema).encode_array(keys)
    numbers: Integers = pc.dictionary_encode(one, null_encoding="encode").indices.to_numpy().astype(np.int64)
    return numbers
