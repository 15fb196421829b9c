"""Keys as bytes that compare like the columns they came from, column by column.

=====================  ======================================================================
column                 bytes
=====================  ======================================================================
integers, date, time   big-endian, sign bit flipped
boolean                one byte
decimal                unscaled value as 128-bit integer, as above
string, binary         the bytes, 01 -> 01 02, 00 -> 01 01, and at the end 00
=====================  ======================================================================

So no encoded key is the beginning of another, and the encoding of the first columns is the prefix of exactly those keys
that have these values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.errors import InvalidKey, SnapshotError
from epochal.state.column_bytes import (
    Columns,
    Values,
    as_list,
    binary_rows,
    column,
    data_and_offsets,
    fixed_array,
    fixed_dtype,
    fixed_values,
    is_variable,
    joined,
    packed,
    pick,
    variable_binary,
)
from epochal.state.scalars import integer_of, unscaled

_END = pa.scalar(b"\x00", pa.binary())


class KeyCodec:
    """Encodes and decodes keys of one schema (flat, no floating point, no nulls)."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._one = [_scalar_encoder(field.type) for field in schema]
        self._widths = [None if is_variable(field.type) else fixed_dtype(field.type).itemsize for field in schema]

    def encode(self, columns: Columns) -> list[bytes]:
        """The keys of each row. Columns are found by name. Raises ``InvalidKey`` for a null."""
        return as_list(self.encode_array(columns))

    def encode_array(self, columns: Columns) -> pa.BinaryArray:
        """As :meth:`encode`, as one Arrow array."""
        parts: list[pa.BinaryArray | pa.Scalar] = []
        fixed: list[npt.NDArray[np.uint8]] = []
        for field in self.schema:
            array = column(columns, field)
            if array.null_count:
                raise InvalidKey(f"Key column {field.name!r} is null in {array.null_count} rows; a key has no nulls.")
            if not is_variable(field.type):
                fixed.append(_sortable(fixed_values(array)))
                continue
            if fixed:
                parts.append(binary_rows(np.hstack(fixed)))
                fixed = []
            parts += [_escaped(variable_binary(array)), _END]
        if fixed:
            parts.append(binary_rows(np.ascontiguousarray(np.hstack(fixed))))
        return joined(parts)

    def encode_one(self, key: Sequence[Any]) -> bytes:
        """One key from Python values in column order: quick, for look-ups. Fewer values give the prefix of a scan."""
        return b"".join(encode(value) for encode, value in zip(self._one, key, strict=False))

    def leading(self, key: bytes, columns: int) -> bytes | None:
        """The beginning of an encoded key that holds its first columns; ``None`` when it does not hold as many."""
        end = 0
        for width in self._widths[:columns]:
            if width is None:
                end = key.find(b"\x00", end) + 1
                if end == 0:
                    return None
            else:
                end += width
        return key[:end] if end <= len(key) else None

    def decode(self, keys: Sequence[bytes] | pa.BinaryArray) -> pa.Table:
        """The key columns. Raises ``SnapshotError`` for bytes that are no keys of this schema."""
        array = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())
        data, offsets = data_and_offsets(array)
        zeros: npt.NDArray[np.int64] | None = None
        bounds, which = [offsets[:-1]], []
        for field in self.schema:
            which.append(len(bounds) - 1)
            if not is_variable(field.type):
                bounds.append(bounds[-1] + fixed_dtype(field.type).itemsize)
                continue
            if zeros is None:
                zeros = np.flatnonzero(data == 0)
            ends = np.searchsorted(zeros, bounds[-1])
            if len(ends) and ends.max(initial=0) >= len(zeros):
                raise SnapshotError("Encoded keys do not have the form of their state table's schema.")
            bounds += [zeros[ends], zeros[ends] + 1]
        if not np.array_equal(bounds[-1], offsets[1:]):
            raise SnapshotError("Encoded keys do not have the form of their state table's schema.")
        parts = pick(data, bounds, which)
        return pa.table(
            [_decoded(part, field.type) for part, field in zip(parts, self.schema, strict=True)], schema=self.schema
        )


def _decoded(part: pa.BinaryArray, type: pa.DataType) -> pa.Array:
    if is_variable(type):
        plain = _unescaped(part)
        return plain if pa.types.is_binary(type) else pa.Array.from_buffers(type, len(plain), plain.buffers())
    return fixed_array(type, _unsortable(packed(part, np.dtype("u1")), fixed_dtype(type)), None)


def _sortable(values: Values) -> npt.NDArray[np.uint8]:
    """(rows, width) bytes in whose order the values are sorted."""
    rows, width = len(values), values.dtype.itemsize
    if values.dtype.kind == "u":
        return values.reshape(rows, 1)
    if values.dtype.kind == "V":
        halves = np.ascontiguousarray(values).view("<u8").reshape(rows, 2)
        big = np.stack([halves[:, 1] ^ np.uint64(1 << 63), halves[:, 0]], axis=1).astype(">u8")
    else:
        unsigned = np.ascontiguousarray(values).view(f"<u{width}")
        big = (unsigned ^ unsigned.dtype.type(1 << (8 * width - 1))).astype(f">u{width}")
    return big.view(np.uint8).reshape(rows, width)


def _unsortable(data: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> Values:
    if dtype.kind == "u":
        return data
    if dtype.kind == "V":
        big: Values = data.view(">u8").reshape(-1, 2).astype("<u8")
        return np.stack([big[:, 1], big[:, 0] ^ np.uint64(1 << 63)], axis=1).reshape(-1).view(dtype)
    unsigned = data.view(f">u{dtype.itemsize}").astype(f"<u{dtype.itemsize}")
    plain: Values = unsigned ^ unsigned.dtype.type(1 << (8 * dtype.itemsize - 1))
    return plain.view(dtype)


def _escaped(array: pa.BinaryArray) -> pa.BinaryArray:
    data, offsets = data_and_offsets(array)
    if not (data[offsets[0] : offsets[-1]] <= 1).any():
        return array
    array = pc.replace_substring(array, b"\x01", b"\x01\x02")
    return pc.replace_substring(array, b"\x00", b"\x01\x01")


def _unescaped(array: pa.BinaryArray) -> pa.BinaryArray:
    data, offsets = data_and_offsets(array)
    if not (data[offsets[0] : offsets[-1]] == 1).any():
        return array
    array = pc.replace_substring(array, b"\x01\x01", b"\x00")
    return pc.replace_substring(array, b"\x01\x02", b"\x01")


def _scalar_encoder(type: pa.DataType) -> Callable[[Any], bytes]:
    if pa.types.is_string(type):
        return lambda value: _escape_one(value.encode())
    if pa.types.is_binary(type):
        return _escape_one
    if pa.types.is_boolean(type):
        return lambda value: b"\x01" if value else b"\x00"
    if pa.types.is_decimal128(type):
        return lambda value: (unscaled(value, type.scale) + (1 << 127)).to_bytes(16, "big")
    width = fixed_dtype(type).itemsize
    bias = 1 << (8 * width - 1)
    to_integer = integer_of(type)
    return lambda value: (to_integer(value) + bias).to_bytes(width, "big")


def _escape_one(value: bytes) -> bytes:
    return value.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + b"\x00"
