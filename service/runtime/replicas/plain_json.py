"""Many rows as JSON, made column by column and not row by row: the bytes that orjson writes of the same objects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from epochal.state.column_bytes import data_and_offsets

_NULL = "null"
_PRINTABLE = np.zeros(256, bool)
"""Bytes of ASCII that stand for themselves in JSON."""
_PRINTABLE[0x20:0x7F] = True
_PRINTABLE[[ord('"'), ord("\\")]] = False


def plain_objects(columns: Sequence[tuple[str, pa.ChunkedArray | pa.Array]]) -> pa.StringArray | None:
    """Each row as an object and a comma. ``None``: some column is of another type than numbers, booleans and text, or
    holds what has to be written in another way than it is."""
    parts: list[pa.Array | pa.Scalar] = []
    for name, values in columns:
        texts = _texts(pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values)
        if texts is None:
            return None
        parts += [pa.scalar(("," if parts else "{") + orjson.dumps(name).decode() + ":"), texts]
    return pc.binary_join_element_wise(*parts, pa.scalar("},"), pa.scalar("")) if parts else None


def array_of(objects: pa.StringArray, there: Sequence[bool]) -> bytes:
    """The objects as a JSON array, ``null`` where there is none; at least one is."""
    if not all(there):
        found = np.array(there, bool)
        objects = objects.take(pa.array(np.cumsum(found) - 1, mask=~found)).fill_null(f"{_NULL},")
    data, offsets = data_and_offsets(objects)
    return b"".join((b"[", data[offsets[0] : offsets[-1] - 1].data, b"]"))


def _texts(values: pa.Array) -> pa.StringArray | None:
    type = values.type
    if pa.types.is_integer(type) or pa.types.is_boolean(type):
        return values.cast(pa.string()).fill_null(_NULL)
    if pa.types.is_floating(type):
        numbers = None if values.null_count else values.to_numpy(zero_copy_only=False)
        if numbers is None or not np.isfinite(numbers).all():
            return None
        return pa.array(orjson.dumps(numbers.tolist()).decode()[1:-1].split(","), pa.string())
    if pa.types.is_string(type):
        data, offsets = data_and_offsets(values)
        if not _PRINTABLE[data[offsets[0] : offsets[-1]]].all():
            return None
        return pc.binary_join_element_wise(pa.scalar('"'), values, pa.scalar('"'), pa.scalar("")).fill_null(_NULL)
    return None
