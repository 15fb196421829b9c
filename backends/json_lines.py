"""Arrow to JSON lines, column by column, in the form that Spark's JSON reader takes back with the same types."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_CONTROL = "[\\x00-\\x1f]"


def encode(batch: pa.RecordBatch) -> bytes:
    """One JSON object per row and line, UTF-8. Nulls are written; NaN and infinity as strings; binary as base64."""
    return "".join(f"{line}\n" for line in objects(batch).to_pylist()).encode()


def objects(batch: pa.RecordBatch) -> pa.Array:
    """One JSON object per row, as a string."""
    if batch.num_rows == 0 or batch.num_columns == 0:
        return pa.array(["{}"] * int(batch.num_rows), pa.string())
    pieces: list[Any] = []
    opening = "{"
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        pieces.append(opening + json.dumps(name, ensure_ascii=False) + ":")
        pieces.append(pc.fill_null(_values(column), "null"))
        opening = ","
    return pc.binary_join_element_wise(*pieces, "}", "")


def _values(column: pa.Array) -> pa.Array:
    """Each value as JSON text; null stays null."""
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
        return _quoted(pc.replace_substring(column.cast(pa.string()), " ", "T"))
    return pa.array([None if value is None else _text(value) for value in column.to_pylist()], pa.string())


def _floats(column: pa.Array) -> pa.Array:
    text = column.cast(pa.string())
    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return text
    special = pa.array(
        [None if value is None else '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'
         for value in column.to_pylist()],
        pa.string(),
    )  # fmt: skip
    return pc.if_else(pc.fill_null(pc.is_finite(column), False), text, special)


def _strings(column: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(column, _CONTROL), min_count=0).as_py():
        return pa.array([None if value is None else _text(value) for value in column.to_pylist()], pa.string())
    escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    return _quoted(escaped)


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', column, '"', "")


def _text(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    match value:
        case Decimal():
            return float(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case date():
            return value.isoformat()
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list() if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(key): _plain(inner) for key, inner in value}
        case list():
            return [_plain(inner) for inner in value]
        case _:
            return value
