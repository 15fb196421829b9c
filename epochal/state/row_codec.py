"""Byte encoding of value columns: a null bitmap, the fixed-width columns, the lengths of the others, then their bytes.

If all columns have a fixed width, so have the rows; they are encoded and decoded as one NumPy record array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.errors import SnapshotError
from epochal.state.column_bytes import (
    Columns,
    Mask,
    Values,
    as_list,
    binary_rows,
    column,
    contiguous_rows,
    data_and_offsets,
    elements,
    fixed_array,
    fixed_dtype,
    fixed_values,
    is_nested,
    is_variable,
    joined,
    null_mask,
    packed,
    pick,
    variable_binary,
)
from epochal.state.types import value_of


class RowCodec:
    """Encodes and decodes rows of one schema; any column may be null."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._nested = [NestedCodec(field.type, RowCodec) if is_nested(field.type) else None for field in schema]
        self._variable = [is_variable(field.type) or is_nested(field.type) for field in schema]
        self._names = list(schema.names)  # Arrow builds a new list at each access
        self._nulls = (len(schema) + 7) // 8
        kinds = [
            np.dtype("<u4") if variable else fixed_dtype(field.type)
            for variable, field in zip(self._variable, schema, strict=True)
        ]
        columns = [(f"c{position}", kind) for position, kind in enumerate(kinds)]
        self._head = np.dtype([("nulls", "u1", (self._nulls,)), *columns])
        codes = (
            "I" if variable else _struct_code(field.type)
            for variable, field in zip(self._variable, schema, strict=True)
        )
        self._one = struct.Struct(f"<{self._nulls}s" + "".join(codes))
        self._values = [
            None if variable else value_of(field.type) for variable, field in zip(self._variable, schema, strict=True)
        ]
        self._text = [pa.types.is_string(field.type) for field in schema]
        self._no_nulls = bytes(self._nulls)
        self._unpacked_as_is = all(
            pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_boolean(field.type)
            for field in schema
        )

    @property
    def width(self) -> int | None:
        """Bytes per row; ``None`` if rows differ in width."""
        return None if any(self._variable) else int(self._head.itemsize)

    def encode(self, columns: Columns) -> list[bytes]:
        """The bytes of each row. Columns are matched by name."""
        return as_list(self.encode_array(columns))

    def encode_array(self, columns: Columns) -> pa.BinaryArray:
        """Like :meth:`encode`, but returns one Arrow array."""
        head = np.zeros(columns.num_rows, self._head)
        tails: list[pa.BinaryArray | pa.Scalar] = []
        for position, field in enumerate(self.schema):
            array = column(columns, field)
            mask = null_mask(array)
            if mask is not None:
                head["nulls"][:, position // 8] |= mask.astype(np.uint8) << np.uint8(position % 8)
            if self._variable[position]:
                tail = self._tail(position, array)
                head[f"c{position}"] = np.diff(data_and_offsets(tail)[1])
                tails.append(tail)
            else:
                head[f"c{position}"] = fixed_values(array)
        return joined([binary_rows(head.view(np.uint8).reshape(len(head), self._head.itemsize)), *tails])

    def decode(self, rows: Sequence[bytes | None] | pa.BinaryArray) -> pa.Table:
        """The value columns, one row per input row; for ``None``, every column is null.

        Raises ``SnapshotError`` for bytes that are not rows of this schema.
        """
        array = rows if isinstance(rows, pa.Array) else pa.array(rows, pa.binary())
        if not array.null_count:
            return self._decode(array)
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        positions = pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid)
        return self._decode(array.drop_null()).take(positions)

    def decode_one(self, row: bytes) -> dict[str, Any]:
        """One row as Python values by column name."""
        nulls, *fields = self._one.unpack_from(row)
        if self._unpacked_as_is and nulls == self._no_nulls:
            return dict(zip(self._names, fields, strict=True))
        bits, start, result = int.from_bytes(nulls, "little"), self._one.size, {}
        for position, (name, to_value, field) in enumerate(zip(self._names, self._values, fields, strict=True)):
            null = bits >> position & 1
            if to_value is not None:
                result[name] = None if null else to_value(field)
                continue
            data = row[start : start + field]
            start += field
            result[name] = None if null else self._variable_value(position, data)
        return result

    def numbers_of(self, row: bytes) -> tuple[Any, ...] | None:
        """The values of a row that has only non-null numbers and booleans; ``None`` for any other row."""
        nulls, *values = self._one.unpack_from(row)
        return tuple(values) if self._unpacked_as_is and nulls == self._no_nulls else None

    def _tail(self, position: int, array: pa.Array) -> pa.BinaryArray:
        nested = self._nested[position]
        return variable_binary(array) if nested is None else nested.encode(array)

    def _variable_value(self, position: int, data: bytes) -> Any:
        nested = self._nested[position]
        if nested is not None:
            return nested.decode(pa.array([data], pa.binary()), None)[0].as_py()
        return data.decode() if self._text[position] else data

    def _decode(self, array: pa.BinaryArray) -> pa.Table:
        data, offsets = data_and_offsets(array)
        if not any(self._variable):
            _check(np.all(np.diff(offsets) == self._head.itemsize))
            return self._table(packed(array, self._head), [])
        ends = offsets[:-1] + self._head.itemsize
        _check(np.all(ends <= offsets[1:]))
        (heads,) = pick(data, [offsets[:-1], ends, offsets[1:]], [0])
        head = packed(heads, self._head)
        bounds = [offsets[:-1], ends]
        for position, variable in enumerate(self._variable):
            if variable:
                bounds.append(bounds[-1] + head[f"c{position}"])
        _check(np.array_equal(bounds[-1], offsets[1:]))
        return self._table(head, pick(data, bounds, range(1, len(bounds) - 1)))

    def _table(self, head: Values, tails: list[pa.BinaryArray]) -> pa.Table:
        nulls, remaining, arrays = head["nulls"], iter(tails), []
        anywhere = np.bitwise_or.reduce(nulls, axis=0) if len(nulls) else np.zeros(self._nulls, np.uint8)
        for position, field in enumerate(self.schema):
            byte, bit = position // 8, np.uint8(1 << position % 8)
            mask = (nulls[:, byte] & bit) != 0 if anywhere[byte] & bit else None
            nested = self._nested[position]
            if nested is not None:
                arrays.append(nested.decode(next(remaining), mask))
            elif self._variable[position]:
                arrays.append(_variable_array(next(remaining), field.type, mask))
            else:
                arrays.append(fixed_array(field.type, head[f"c{position}"], mask))
        return pa.table(arrays, schema=self.schema)


def _variable_array(tail: pa.BinaryArray, type: pa.DataType, mask: Mask | None) -> pa.Array:
    _, offsets, data = tail.buffers()
    validity = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(type, len(tail), [validity, offsets, data], offset=tail.offset)


def _struct_code(type: pa.DataType) -> str:
    if pa.types.is_boolean(type):
        return "?"
    if pa.types.is_decimal128(type):
        return "16s"
    codes = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "f4": "f", "f8": "d"}
    return codes[fixed_dtype(type).str[1:]]


def _check(valid: Any) -> None:
    if not valid:
        raise SnapshotError("Encoded rows do not have the form of their state table's schema.")


_COUNT = np.dtype("<u4")


class Rows(Protocol):
    """A codec of rows: :class:`epochal.state.row_codec.RowCodec`, which contains nested codecs recursively."""

    @property
    def width(self) -> int | None:
        """Bytes per row; ``None`` if rows differ in width."""

    def encode_array(self, columns: Columns) -> pa.BinaryArray: ...

    def decode(self, rows: pa.BinaryArray) -> pa.Table: ...


class NestedCodec:
    """Encodes and decodes values of one array, map or struct type. ``rows`` creates the codec of the nested rows."""

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
        """The bytes of each value; the bytes of a null value are undefined."""
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
        """The inverse of :meth:`encode`; null where ``mask`` is true. Raises ``SnapshotError`` for invalid bytes."""
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
        assert width is not None  # otherwise the bytes contain the length of each row
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
