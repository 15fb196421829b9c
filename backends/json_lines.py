"""Arrow to JSON lines, column by column, in the form that Spark's JSON reader reads as the same types."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends.csv_lines import floats, timestamps
from epochal.backends.text_columns import bytes_of, check_utf8
from epochal.state.column_bytes import elements
from epochal.state.json_form import variant_text
from epochal.state.types import is_variant

_MICROSECOND = timedelta(microseconds=1)


def encode(batch: pa.RecordBatch) -> bytes:
    """One JSON object per row and line, UTF-8. Nulls are written; NaN and infinity as strings; binary as base64.

    Raises ``RowRejected`` for text that is not UTF-8.
    """
    check_utf8(batch, "JSON")
    return bytes_of(objects(batch, "}\n"))


def objects(batch: pa.RecordBatch, closing: str = "}") -> pa.Array:
    """One JSON object per row, as a string."""
    if batch.num_rows == 0 or batch.num_columns == 0:
        return pa.array(["{" + closing] * int(batch.num_rows), pa.string())
    pieces: list[Any] = []
    opening = "{"
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        pieces.append(opening + json.dumps(name, ensure_ascii=False) + ":")
        pieces.append(pc.fill_null(_values(column), "null"))
        opening = ","
    return pc.binary_join_element_wise(*pieces, closing, "")


def texts(column: pa.Array) -> pa.Array:
    """Each value of a column as JSON text; null stays null."""
    return _values(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)


def _values(column: pa.Array) -> pa.Array:
    type = column.type
    if pa.types.is_boolean(type) or pa.types.is_integer(type) or pa.types.is_decimal(type):
        return column.cast(pa.string())
    if pa.types.is_floating(type):
        return _floats(column)
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return _strings(column.cast(pa.string()))
    if pa.types.is_date(type):
        return _quoted(column.cast(pa.string()))
    if pa.types.is_timestamp(type):
        return _quoted(pc.replace_substring(timestamps(column), " ", "T"))
    if pa.types.is_duration(type):
        return _quoted(intervals(column))
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        return _quoted(_each(column, lambda value: base64.b64encode(value).decode()))
    if is_variant(type):
        return _each(column, lambda value: variant_text(value["value"], value["metadata"]))
    if pa.types.is_struct(type):
        return _or_null(column, objects(pa.RecordBatch.from_arrays(column.flatten(), names=_names(type))))
    return _lists(column)


def _lists(column: pa.Array) -> pa.Array:
    """Arrays, and maps as objects whose names are their keys."""
    counts, parts = elements(column)
    texts = pc.fill_null(_values(parts[-1]), "null")
    opening, closing = "[", "]"
    if len(parts) == 2:
        texts = pc.binary_join_element_wise(_map_keys(parts[0]), texts, ":")
        opening, closing = "{", "}"
    offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), counts])).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), ",")
    return _or_null(column, pc.binary_join_element_wise(opening, joined, closing, ""))


def _map_keys(keys: pa.Array) -> pa.Array:
    texts = _values(keys)
    if pa.types.is_nested(keys.type):
        return _strings(texts)
    bare = keys.type
    unquoted = pa.types.is_boolean(bare) or pa.types.is_integer(bare) or pa.types.is_decimal(bare)
    if pa.types.is_floating(bare):
        return _quoted(pc.replace_substring(texts, '"', ""))
    return _quoted(texts) if unquoted else texts


def intervals(column: pa.Array) -> pa.Array:
    """Intervals of days to seconds as Spark writes them into text: ``INTERVAL '1 02:03:04.5' DAY TO SECOND``."""
    return _each(column, _interval)


def _interval(value: timedelta) -> str:
    seconds, fraction = divmod(abs(value) // _MICROSECOND, 1_000_000)
    days, second = divmod(seconds, 86_400)
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    decimals = f".{fraction:06}".rstrip("0") if fraction else ""
    return f"INTERVAL '{'-' if value < timedelta(0) else ''}{days} {clock}{decimals}' DAY TO SECOND"


def _names(type: pa.StructType) -> list[str]:
    return [field.name for field in type]


def _or_null(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string())) if column.null_count else texts


def _each(column: pa.Array, text: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else text(value) for value in column.to_pylist()], pa.string())


def _floats(column: pa.Array) -> pa.Array:
    text = floats(column)
    finite = pc.is_finite(column)
    return text if pc.all(finite, min_count=0).as_py() else pc.if_else(finite, text, _quoted(text))


def _strings(column: pa.Array) -> pa.Array:
    data = bytes_of(column)
    if np.frombuffer(data, np.uint8).min(initial=0xFF) < 0x20:  # a control character
        return _each(column, lambda value: json.dumps(value, ensure_ascii=False))
    if b"\\" in data:
        column = pc.replace_substring(column, "\\", "\\\\")
    return _quoted(pc.replace_substring(column, '"', '\\"') if b'"' in data else column)


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', column, '"', "")
