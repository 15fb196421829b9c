"""Vectorized conversion between Arrow columns and NumPy arrays of their raw values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Values = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Columns: TypeAlias = "pa.Table | pa.RecordBatch"


def is_variable(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_binary(type))


def is_nested(type: pa.DataType) -> bool:
    return bool(pa.types.is_nested(type))


def fixed_dtype(type: pa.DataType) -> np.dtype[Any]:
    """The little-endian NumPy type of a fixed-width column's values; a decimal is 16 raw bytes."""
    if pa.types.is_boolean(type):
        return np.dtype("u1")
    if pa.types.is_decimal128(type):
        return np.dtype("V16")
    kind = "f" if pa.types.is_floating(type) else "i"
    return np.dtype(f"<{kind}{type.bit_width // 8}")


def column(columns: Columns, field: pa.Field) -> pa.Array:
    """One column as one array of exactly the field's type."""
    array = columns.column(field.name)
    if isinstance(array, pa.ChunkedArray):  # combine_chunks also copies a single chunk
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # pyarrow may return a chunked array, e.g. without chunks
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array if array.type == field.type else array.cast(field.type)


def null_mask(array: pa.Array) -> Mask | None:
    """True where null; ``None`` if the array has no nulls."""
    return cast(Mask, array.is_null().to_numpy(zero_copy_only=False)) if array.null_count else None


def fixed_values(array: pa.Array) -> Values:
    """The raw values of a fixed-width array; zero where null."""
    dtype = fixed_dtype(array.type)
    if len(array) == 0:
        return np.zeros(0, dtype)
    if pa.types.is_boolean(array.type):
        return cast(Values, array.fill_null(False).cast(pa.uint8()).to_numpy(zero_copy_only=False))
    values = np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]
    mask = null_mask(array)
    if mask is not None:
        values = values.copy()
        values[mask] = np.zeros((), dtype)
    return values


def fixed_array(type: pa.DataType, values: Values, mask: Mask | None) -> pa.Array:
    """The inverse of :func:`fixed_values`."""
    if pa.types.is_boolean(type):
        return pa.array(values.astype(bool), type, mask=mask)
    validity = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(type, len(values), [validity, pa.py_buffer(np.ascontiguousarray(values))])


def binary_rows(matrix: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    """The rows of a contiguous matrix of bytes as a binary array, without copying bytes."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(matrix)])


def contiguous_rows(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Adjacent rows from the start of ``data`` as a binary array, without copying contiguous bytes."""
    offsets = np.concatenate([np.zeros(1, np.int32), ends.astype(np.int32)])
    return pa.Array.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def elements(array: pa.Array) -> tuple[npt.NDArray[np.int64], list[pa.Array]]:
    """The number of elements of each value of a list or map array, 0 where null; and all elements, in order.

    The elements of a list are one array; the elements of a map are two arrays, its keys and its values.
    """
    is_map = pa.types.is_map(array.type)
    if is_map:
        # Convert to a list of structs: Arrow lacks the list functions for maps.
        entries = pa.StructArray.from_arrays(
            [array.keys, array.items], fields=[array.type.key_field, array.type.item_field]
        )
        buffers = array.buffers()[:2]
        array = pa.Array.from_buffers(
            pa.list_(entries.type), len(array), buffers, offset=array.offset, children=[entries]
        )
    counts = np.diff(array.offsets.to_numpy()).astype(np.int64)
    nulls = null_mask(array)
    if nulls is not None:
        counts[nulls] = 0  # `flatten` also skips elements of null values
    flat = array.flatten()
    return counts, flat.flatten() if is_map else [flat]


def variable_binary(array: pa.Array) -> pa.BinaryArray:
    """A string or binary array as binary, empty where null."""
    binary = array if pa.types.is_binary(array.type) else array.cast(pa.binary())
    return binary.fill_null(b"") if binary.null_count else binary


def data_and_offsets(array: pa.BinaryArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The data buffer of a (large) binary array and the offset of each value (one more offset than values)."""
    if len(array) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    offset_type = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    offsets = np.frombuffer(array.buffers()[1], offset_type)[array.offset : array.offset + len(array) + 1]
    data = array.buffers()[2]
    return np.frombuffer(data if data is not None else b"", np.uint8), offsets.astype(np.int64, copy=False)


def pick(
    data: npt.NDArray[np.uint8], bounds: Sequence[npt.NDArray[np.int64]], which: Sequence[int]
) -> list[pa.BinaryArray]:
    """The parts ``which`` of the adjacent rows in ``data``, each as a binary array.

    ``bounds`` divides the rows into parts, one array per boundary: the first has the starts of rows, the last the ends.
    """
    rows, parts = len(bounds[0]), len(bounds) - 1
    offsets = np.empty(rows * parts + 1, np.int32)
    for part in range(parts):
        offsets[part:-1:parts] = bounds[part]
    offsets[-1] = bounds[-1][-1] if rows else 0
    cut = pa.Array.from_buffers(pa.binary(), rows * parts, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return [cut.take(pa.array(np.arange(part, rows * parts, parts))) for part in which]


def packed(array: pa.BinaryArray, dtype: np.dtype[Any]) -> Values:
    """A binary array whose values all have the width of ``dtype``, as a NumPy array of that type."""
    data, offsets = data_and_offsets(array)
    return data[offsets[0] : offsets[-1]].view(dtype)


def ends_of_prefixes(prefixes: pa.BinaryArray) -> pa.BinaryArray:
    """For each prefix, the least upper bound of all byte strings with that prefix; null if unbounded."""
    data, offsets = data_and_offsets(prefixes)
    starts, ends = offsets[:-1], offsets[1:].copy()
    open = np.flatnonzero(ends > starts)
    while len(open):  # strip trailing ff bytes; the byte before them is incremented
        open = open[data[ends[open] - 1] == 0xFF]
        ends[open] -= 1
        open = open[ends[open] > starts[open]]
    (cut,) = pick(data, [starts, ends, offsets[1:]], [0])
    kept, bounds = data_and_offsets(cut)
    kept = kept.copy()
    some = np.diff(bounds) > 0
    kept[bounds[1:][some] - 1] += 1
    validity = None if some.all() else pa.py_buffer(np.packbits(some, bitorder="little"))
    return pa.Array.from_buffers(
        pa.binary(), len(cut), [validity, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(kept)]
    )


def as_list(array: pa.BinaryArray) -> list[Any]:
    """A binary array as Python bytes, ``None`` where null. Converting through NumPy is fast in every Arrow version."""
    return cast(list[bytes], array.to_numpy(zero_copy_only=False).tolist())


def joined(parts: Sequence[pa.BinaryArray | pa.Scalar]) -> pa.BinaryArray:
    """Concatenate the parts of each row."""
    if len(parts) == 1 and isinstance(parts[0], pa.Array):
        return parts[0]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
