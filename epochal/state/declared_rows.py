"""Conversion of rows in older files to the current declaration of their state table.

An upgrade never rewrites files. In older rows, an added column is null or its default, a widened column is cast, and a
dropped column is omitted.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from epochal.state.column_bytes import Columns, column
from epochal.state.json_form import from_json
from epochal.state.table import Column, StateTable
from epochal.state.type_names import NestedType, decimal_of, nested_type
from epochal.state.types import INTEGER_BITS, arrow_type


def widens(before: str, after: str) -> bool:
    """Return true if every value of ``before`` is exactly representable in ``after``: Spark's lossless widenings."""
    if before in INTEGER_BITS and after in INTEGER_BITS:
        return INTEGER_BITS[before] < INTEGER_BITS[after]
    if (before, after) == ("float", "double"):
        return True
    if after == "double" and before in INTEGER_BITS:
        return INTEGER_BITS[before] <= 32
    inner, outer = nested_type(before), nested_type(after)
    if inner is not None and outer is not None:
        return _nested_widens(inner, outer)
    old, new = decimal_of(before), decimal_of(after)
    if old is None or new is None:
        return False
    return old != new and new[1] >= old[1] and new[0] - new[1] >= old[0] - old[1]


def _nested_widens(before: NestedType, after: NestedType) -> bool:
    """An element, a map's value or a field may widen. Fields and their order, and a map's key type, must be equal."""
    if (before.kind, before.names) != (after.kind, after.names):
        return False
    pairs = list(zip(before.types, after.types, strict=True))
    if before.kind == "map" and pairs[0][0] != pairs[0][1]:
        return False
    return before != after and all(old == new or widens(old, new) for old, new in pairs)


def as_declared(rows: Columns, fields: Iterable[pa.Field], table: StateTable, *, in_one_chunk: bool = True) -> pa.Table:
    """Convert rows of a file, possibly of an older declaration, to ``fields`` of ``table``'s current declaration.
    ``in_one_chunk``: return each column in one chunk; otherwise, leave a column that has its field's type unchanged.

    Raises ``KeyError`` if a column other than a value column of the table is missing: evolution cannot cause that.
    """
    defaults = {column.name: column for column in table.value}
    there = set(rows.schema.names)
    declared = list(fields)
    arrays = [
        _typed(rows, field, in_one_chunk) if field.name in there else _absent(defaults[field.name], rows.num_rows)
        for field in declared
    ]
    return pa.table(arrays, schema=pa.schema(declared))


def _typed(rows: Columns, field: pa.Field, in_one_chunk: bool) -> pa.Array | pa.ChunkedArray:
    held = rows.column(field.name)
    return held if held.type == field.type and not in_one_chunk else column(rows, field)


def _absent(column: Column, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(from_json(column.default, column), arrow_type(column.type)), rows)
