"""The slice of a task with keyed state: its rows as one table, their keys as state stores them, numbers of keys, an
order of rows that does not depend on their arrival, and the rows of staged changes."""

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
    """All rows of a subtask as one contiguous table."""
    return pa.Table.from_batches(list(rows)).combine_chunks()


@dataclass(frozen=True)
class SliceKeys:
    """The keys of the rows of a slice as a state table stores them.

    ``rows``: their columns, in the table's types; ``groups``: their key groups, int32; ``access``: to the table at the
    parent epoch.
    """

    table: StateTable
    rows: pa.Table
    groups: pa.Array
    access: TableAccess

    @classmethod
    def of(cls, subtask: Subtask, table: StateTable, rows: pa.Table, named: Sequence[str] | None = None) -> Self:
        """The full keys of ``rows``; for a table with its own sub-keys (a map) only the operator's keys.

        ``named``: the names of the key columns in ``rows``, if they differ from the table's.
        """
        schema = table.owner_schema if table.sub_key else table.key_schema
        keys = rows.select(schema.names if named is None else list(named))
        if named is not None:
            keys = keys.rename_columns(schema.names)
        access = TableAccess(table, subtask.transaction.view(table.id), subtask.max_parallelism)
        return cls(table, keys.cast(schema), column_of(rows, KEY_GROUP), access)

    @classmethod
    def living(cls, subtask: Subtask, table: StateTable, rows: pa.Table) -> Self:
        """Like :meth:`of`, without the rows that have expired when the epoch opens."""
        access = TableAccess(table, subtask.living(table), subtask.max_parallelism)
        keys = rows.select(table.key_schema.names).cast(table.key_schema)
        return cls(table, keys, column_of(rows, KEY_GROUP), access)

    @cached_property
    def encoded(self) -> pa.BinaryArray:
        """The encoded full keys."""
        return self.access.encoded(self.rows)

    def stored(self) -> tuple[Mask, pa.Table]:
        """The result of :meth:`TableAccess.get` for the full keys."""
        return self.access.get_encoded(self.encoded, self.groups.to_numpy(zero_copy_only=False))

    def shown(self, row: int) -> str:
        """The key of a row for a message."""
        return key_shown(self.rows, row)

    def entries(self) -> Entries:
        """The result of :meth:`TableAccess.entries` for the operator's keys."""
        return self.access.entries(self.rows, self.groups.to_numpy(zero_copy_only=False))

    def filter(self, mask: pa.BooleanArray) -> SliceKeys:
        return SliceKeys(self.table, self.rows.filter(mask), self.groups.filter(mask), self.access)

    def changes(self, operation: str | pa.StringArray, values: Sequence[Any] = ()) -> pa.Table:
        """The result of :func:`delta_rows` for these keys, which must be full keys."""
        return delta_rows(self.table, self.groups, operation, [*self.rows.columns, *values])


def delta_rows(
    table: StateTable, groups: Groups | pa.Array, operation: str | pa.StringArray, columns: Sequence[Any]
) -> pa.Table:
    """Changes to stage, with the columns ``table.delta_schema``.

    ``operation``: ``put`` or ``delete``, or an array of them; ``columns``: those of the full key and, except for
    ``delete``, the values.
    """
    count = len(groups)
    absent = [pa.nulls(count, field.type) for field in list(table.delta_schema)[2 + len(columns) :]]
    operations = pa.repeat(pa.scalar(operation), count) if isinstance(operation, str) else operation
    of_rows = groups if isinstance(groups, pa.Array) else pa.array(groups, pa.int32())
    return pa.Table.from_arrays([of_rows, operations, *columns, *absent], schema=table.delta_schema)


def numbered_keys(keys: pa.Table) -> tuple[Integers, Integers]:
    """The number of the key of each row, from 0, and the position of one row for each key. Null is a key like
    others."""
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
    """The positions of the rows sorted by key, then by the columns ``first``, then by all others, nulls last.

    The order depends on the rows alone. Columns without an order are compared by a digest. Equal rows keep their
    order. ``descending``: for the columns ``first``, in which NaN is greater than all numbers, as in Spark.
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
    """Equal numbers for equal keys, from 0, in the order of their first rows."""
    one = column_of(keys, keys.column_names[0]) if keys.num_columns == 1 else KeyCodec(keys.schema).encode_array(keys)
    numbers: Integers = pc.dictionary_encode(one, null_encoding="encode").indices.to_numpy().astype(np.int64)
    return numbers
