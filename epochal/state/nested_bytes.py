"""Values of nested columns as bytes, column by column: what :class:`epochal.state.row_codec.RowCodec` keeps of them.

==========  ==========================================================================
type        bytes of one value
==========  ==========================================================================
struct      its fields, as a row
array, map  the elements (of a map: its entries), each as a row, after one another; where
            these differ in width, before them their number and the length of each
==========  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.errors import SnapshotError
from epochal.state.column_bytes import (
    Columns,
    Mask,
    binary_rows,
    contiguous_rows,
    data_and_offsets,
    elements,
    joined,
    packed,
    pick,
)

_COUNT = np.dtype("<u4")


class Rows(Protocol):
    """A codec of rows; :class:`epochal.state.row_codec.RowCodec`, which is recursive through this module."""

    @property
    def width(self) -> int | None:
        """Bytes of every row; ``None`` when rows differ."""

    def encode_array(self, columns: Columns) -> pa.BinaryArray: ...

    def decode(self, rows: pa.BinaryArray) -> pa.Table: ...


class NestedCodec:
    """Encodes and decodes values of one array, map or struct type. ``rows`` makes the codec of the rows within."""

    def __init__(self, type: pa.DataType, rows: Callable[[pa.Schema], Rows]) -> None:
        self._type = type
        if pa.types.is_struct(type):
            self._fields = [field.with_nullable(True) for field in type]
        elif pa.types.is_map(type):
            self._fields = [type.key_field, type.item_field]
        else:
            self._fields = [type.value_field]
        names = [str(position) for position in range(len(self._fields))]  # two fields may differ in case only
        self._schema = pa.schema([pa.field(name, field.type) for name, field in zip(names, self._fields, strict=True)])
        self._rows = rows(self._schema)

    def encode(self, array: pa.Array) -> pa.BinaryArray:
        """The bytes of each value; those of null mean nothing."""
        if pa.types.is_struct(self._type):
            return self._rows.encode_array(pa.table(array.flatten(), schema=self._schema))
        counts, columns = elements(array)
        data, offsets = data_and_offsets(self._rows.encode_array(pa.table(columns, schema=self._schema)))
        ends = np.cumsum(counts)
        first = int(offsets[0])
        body = contiguous_rows(data[first : int(offsets[-1])], offsets[ends] - first)
        if self._rows.width is not None:
            return body
        lengths = contiguous_rows(np.diff(offsets).astype(_COUNT).view(np.uint8), ends * _COUNT.itemsize)
        return joined([binary_rows(counts.astype(_COUNT).view(np.uint8).reshape(-1, _COUNT.itemsize)), lengths, body])

    def decode(self, values: pa.BinaryArray, mask: Mask | None) -> pa.Array:
        """The inverse of :meth:`encode`; null where ``mask``. Raises ``SnapshotError`` for foreign bytes."""
        nulls = None if mask is None else pa.array(mask)
        if pa.types.is_struct(self._type):
            columns = [column.combine_chunks() for column in self._rows.decode(values).columns]
            return pa.StructArray.from_arrays(columns, fields=list(self._type), mask=nulls)
        counts, rows = self._fixed(values) if self._rows.width is not None else self._varying(values)
        columns = [column.combine_chunks() for column in self._rows.decode(rows).columns]
        ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), counts])).astype(np.int32)
        offsets = pa.array(ends, mask=None if mask is None else np.append(mask, False))
        if pa.types.is_map(self._type):
            return pa.MapArray.from_arrays(offsets, *columns, type=self._type)
        return pa.ListArray.from_arrays(offsets, columns[0], type=self._type)

    def _fixed(self, values: pa.BinaryArray) -> tuple[npt.NDArray[np.int64], pa.BinaryArray]:
        data, offsets = data_and_offsets(values)
        width = self._rows.width
        assert width is not None  # else the bytes say how long each row is
        counts, rest = np.divmod(np.diff(offsets), width)
        _check(not rest.any())
        whole = data[int(offsets[0]) : int(offsets[-1])]
        return counts, contiguous_rows(whole, np.arange(1, int(counts.sum()) + 1) * width)

    def _varying(self, values: pa.BinaryArray) -> tuple[npt.NDArray[np.int64], pa.BinaryArray]:
        data, offsets = data_and_offsets(values)
        starts, ends = offsets[:-1], offsets[1:]
        heads = starts + _COUNT.itemsize
        _check(np.all(heads <= ends))
        (numbers,) = pick(data, [starts, heads, ends], [0])
        counts = packed(numbers, _COUNT).astype(np.int64)
        bodies = heads + counts * _COUNT.itemsize
        _check(np.all(bodies <= ends))
        lengths, rows = pick(data, [starts, heads, bodies, ends], [1, 2])
        row_ends = np.cumsum(packed(lengths, _COUNT).astype(np.int64))
        row_data, row_offsets = data_and_offsets(rows)
        first = int(row_offsets[0])
        _check(np.array_equal(np.append(0, row_ends)[np.cumsum(counts)], row_offsets[1:] - first))
        return counts, contiguous_rows(row_data[first : int(row_offsets[-1])], row_ends)


def _check(valid: Any) -> None:
    if not valid:
        raise SnapshotError("Encoded rows do not have the form of their state table's schema.")
