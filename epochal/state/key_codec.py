"""Order-preserving byte encoding of keys: encoded keys compare like their columns, and null sorts first.

=====================  ===========================================================  ===============================
column                 bytes                                                        null
=====================  ===========================================================  ===============================
integers, date, time   big-endian, sign bit flipped; preceded by 01 if nullable     00, then the same number of
                                                                                    zero bytes
boolean                01 false, 02 true                                            00
decimal                unscaled value as 128-bit integer, as above                  zeros; no decimal encodes to
                                                                                    zeros (at most 38 digits)
string, binary         the bytes, 02 -> 02 04, 01 -> 02 03, 00 -> 02 02, then a     00
                       final 01
=====================  ===========================================================  ===============================

Hence no encoded key is a prefix of another, and the encoding of the first columns is the prefix of exactly the keys
with these values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.errors import InvalidKey, SnapshotError
from epochal.state.column_bytes import (
    Columns,
    Mask,
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
    null_mask,
    packed,
    pick,
    variable_binary,
)
from epochal.state.types import integer_of, unscaled

FORM = 2
"""Version of the encoding. Local stores, replicas and cursors store this number next to the bytes, so that bytes of
another version are never misread. Version 1 had no nulls."""

_NULL, _END, _PRESENT = b"\x00", b"\x01", b"\x01"
_FALSE = np.uint8(1)
_ESCAPES = [(b"\x02", b"\x02\x04"), (b"\x01", b"\x02\x03"), (b"\x00", b"\x02\x02")]
"""Escaping applies them in this order, unescaping in reverse order: the second 02 of the last escape could otherwise be
read as the first byte of another."""


class KeyCodec:
    """Encodes and decodes keys of one schema (flat, no floating point). Only nullable columns accept nulls."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._one = [_scalar_encoder(field) for field in schema]
        self._widths = [None if is_variable(field.type) else _width(field) for field in schema]

    def encode(self, columns: Columns) -> list[bytes]:
        """The key of each row; columns are matched by name. Raises ``InvalidKey`` for null in a non-nullable column."""
        return as_list(self.encode_array(columns))

    def encode_array(self, columns: Columns) -> pa.BinaryArray:
        """Like :meth:`encode`, but returns one Arrow array."""
        parts: list[pa.BinaryArray | pa.Scalar] = []
        fixed: list[npt.NDArray[np.uint8]] = []
        for field in self.schema:
            array = column(columns, field)
            if array.null_count and not field.nullable:
                raise InvalidKey(f"Key column {field.name!r} is null in {array.null_count} rows; it takes no nulls.")
            if not is_variable(field.type):
                fixed += _fixed(array, field)
                continue
            if fixed:
                parts.append(binary_rows(np.hstack(fixed)))
                fixed = []
            end = pc.if_else(array.is_null(), _NULL, _END) if array.null_count else pa.scalar(_END)
            parts += [_escaped(variable_binary(array)), end]
        if fixed:
            together = fixed[0] if len(fixed) == 1 else np.hstack(fixed)
            parts.append(binary_rows(np.ascontiguousarray(together)))
        return joined(parts)

    def encode_one(self, key: Sequence[Any]) -> bytes:
        """One key from Python values in column order; fast path for look-ups. Fewer values give the prefix of a scan.

        Raises ``InvalidKey`` for ``None`` in a non-nullable column.
        """
        return b"".join([encode(value) for encode, value in zip(self._one, key, strict=False)])

    def leading(self, key: bytes, columns: int) -> bytes | None:
        """The prefix of an encoded key that contains its first ``columns``; ``None`` if the key has fewer columns."""
        end = 0
        for width in self._widths[:columns]:
            if width is not None:
                end += width
                continue
            if key[end : end + 1] != _NULL:
                end = key.find(_END, end)
                if end < 0:
                    return None
            end += 1
        return key[:end] if end <= len(key) else None

    def decode(self, keys: Sequence[bytes] | pa.BinaryArray) -> pa.Table:
        """The key columns. Raises ``SnapshotError`` for bytes that are not keys of this schema."""
        array = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())
        data, offsets = data_and_offsets(array)
        low: npt.NDArray[np.int64] | None = None
        bounds, which = [offsets[:-1]], []
        nulls: list[Mask | None] = []
        for field in self.schema:
            which.append(len(bounds) - 1)
            if not is_variable(field.type):
                bounds.append(bounds[-1] + _width(field))
                nulls.append(None)
                continue
            if low is None:
                low = np.flatnonzero(data <= _END[0])
            found = np.searchsorted(low, bounds[-1])
            _check(not len(found) or found.max() < len(low))
            ends = low[found]
            null = data[ends] == _NULL[0]
            _check(np.all(ends[null] == bounds[-1][null]) and (field.nullable or not null.any()))
            nulls.append(null)
            bounds += [ends, ends + 1]
        _check(np.array_equal(bounds[-1], offsets[1:]))
        parts = pick(data, bounds, which)
        return pa.table(list(map(_decoded, parts, self.schema, nulls)), schema=self.schema)


def _decoded(part: pa.BinaryArray, field: pa.Field, null: Mask | None) -> pa.Array:
    if null is not None:
        _, offsets, data = _unescaped(part).buffers()
        validity = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
        return pa.Array.from_buffers(field.type, len(part), [validity, offsets, data])
    rows = packed(part, np.dtype("u1")).reshape(-1, _width(field))
    values = rows
    if _has_presence(field):
        null, values = np.equal(rows[:, 0], 0), np.ascontiguousarray(rows[:, 1:])
    elif field.nullable:
        null = np.asarray(np.equal(rows, 0).all(axis=1))
    plain = _unsortable(values.reshape(-1), fixed_dtype(field.type))
    return fixed_array(field.type, plain, null if null is not None and null.any() else None)


def _width(field: pa.Field) -> int:
    return int(fixed_dtype(field.type).itemsize) + _has_presence(field)


def _has_presence(field: pa.Field) -> bool:
    return bool(field.nullable and not pa.types.is_boolean(field.type) and not pa.types.is_decimal128(field.type))


def _check(valid: Any) -> None:
    if not valid:
        raise SnapshotError("Encoded keys do not have the form of their state table's schema.")


def _fixed(array: pa.Array, field: pa.Field) -> list[npt.NDArray[np.uint8]]:
    """The bytes of a fixed-width column, (rows, width), in one or two parts."""
    data, mask = _sortable(fixed_values(array)), null_mask(array)
    if mask is not None:
        data[mask] = 0
    if not _has_presence(field):
        return [data]
    present = np.ones(len(array), np.uint8) if mask is None else (~mask).astype(np.uint8)
    return [present.reshape(-1, 1), data]


def _sortable(values: Values) -> npt.NDArray[np.uint8]:
    """Bytes of shape (rows, width) that sort like the values."""
    rows, width = len(values), values.dtype.itemsize
    if values.dtype.kind == "u":
        return (values + _FALSE).reshape(rows, 1)
    if values.dtype.kind == "V":
        halves = np.ascontiguousarray(values).view("<u8").reshape(rows, 2)
        big = np.stack([halves[:, 1] ^ np.uint64(1 << 63), halves[:, 0]], axis=1).astype(">u8")
    else:
        unsigned = np.ascontiguousarray(values).view(f"<u{width}")
        big = (unsigned ^ unsigned.dtype.type(1 << (8 * width - 1))).astype(f">u{width}")
    return big.view(np.uint8).reshape(rows, width)


def _unsortable(data: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> Values:
    if dtype.kind == "u":
        return data - _FALSE
    if dtype.kind == "V":
        big: Values = data.view(">u8").reshape(-1, 2).astype("<u8")
        return np.stack([big[:, 1], big[:, 0] ^ np.uint64(1 << 63)], axis=1).reshape(-1).view(dtype)
    unsigned = data.view(f">u{dtype.itemsize}").astype(f"<u{dtype.itemsize}")
    plain: Values = unsigned ^ unsigned.dtype.type(1 << (8 * dtype.itemsize - 1))
    return plain.view(dtype)


def _escaped(array: pa.BinaryArray) -> pa.BinaryArray:
    data, offsets = data_and_offsets(array)
    if not (data[offsets[0] : offsets[-1]] <= 2).any():
        return array
    for plain, escaped in _ESCAPES:
        array = pc.replace_substring(array, plain, escaped)
    return array


def _unescaped(array: pa.BinaryArray) -> pa.BinaryArray:
    data, offsets = data_and_offsets(array)
    if not (data[offsets[0] : offsets[-1]] == 2).any():
        return array
    for plain, escaped in reversed(_ESCAPES):
        array = pc.replace_substring(array, escaped, plain)
    return array


def _scalar_encoder(field: pa.Field) -> Callable[[Any], bytes]:
    encode = _of_values(field.type)
    if not field.nullable:
        return partial(_never_null, field.name, encode)
    if is_variable(field.type):
        return lambda value: _NULL if value is None else encode(value)
    null = bytes(_width(field))
    if pa.types.is_integer(field.type):
        # Equivalent to the code below without a nested call: most look-ups have integer keys.
        width = fixed_dtype(field.type).itemsize
        bias = 1 << (8 * width - 1)
        return lambda value: null if value is None else _PRESENT + (value + bias).to_bytes(width, "big")
    if _has_presence(field):
        return lambda value: null if value is None else _PRESENT + encode(value)
    return lambda value: null if value is None else encode(value)


def _never_null(name: str, encode: Callable[[Any], bytes], value: Any) -> bytes:
    if value is None:
        raise InvalidKey(f"Key column {name!r} takes no nulls.")
    return encode(value)


def _of_values(type: pa.DataType) -> Callable[[Any], bytes]:
    if pa.types.is_string(type):
        return lambda value: _escape_one(value.encode())
    if pa.types.is_binary(type):
        return _escape_one
    if pa.types.is_boolean(type):
        return lambda value: b"\x02" if value else b"\x01"
    if pa.types.is_decimal128(type):
        return lambda value: (unscaled(value, type.scale) + (1 << 127)).to_bytes(16, "big")
    width = fixed_dtype(type).itemsize
    bias = 1 << (8 * width - 1)
    to_integer = integer_of(type)
    return lambda value: (to_integer(value) + bias).to_bytes(width, "big")


def _escape_one(value: bytes) -> bytes:
    if value.isalnum():
        return value + _END
    for plain, escaped in _ESCAPES:
        value = value.replace(plain, escaped)
    return value + _END
