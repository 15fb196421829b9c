"""Text in Arrow columns that sinks write: its bytes, a check for UTF-8, and messages that name row and column."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

from epochal.errors import RowRejected
from epochal.state.column_bytes import elements

_LONGEST_ROW = 200


def is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


def has_text(type: pa.DataType) -> bool:
    """Return whether values of the type are text, or contain text."""
    return is_text(type) or any(has_text(type.field(inner).type) for inner in range(type.num_fields))


def text_leaves(column: pa.Array) -> Iterator[pa.Array]:
    """The text that a column consists of: the column, or the text within its structs, arrays and maps."""
    type = column.type
    if is_text(type):
        yield column
    elif has_text(type):
        parts = column.flatten() if pa.types.is_struct(type) else elements(column)[1]
        for part in parts:
            yield from text_leaves(part)


def bytes_of(column: pa.Array) -> bytes:
    """The bytes of all values of a text or binary column, without borders."""
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    if data is None or len(column) == 0:
        return b""
    ends = pa.Array.from_buffers(pa.int64() if wide else pa.int32(), len(column) + 1, [None, offsets], 0, column.offset)
    first, last = ends[0].as_py(), ends[len(column)].as_py()
    return bytes(data.slice(first, last - first).to_pybytes())


def check_utf8(
    rows: pa.RecordBatch | pa.Table, what: str, keys: Collection[str] = (), columns: Collection[str] | None = None
) -> None:
    """Raises ``RowRejected`` that names the first row and column with text that is not UTF-8.

    Spark's casts of binary to string, and lone surrogates, make such text. ``what`` cannot represent it. ``columns``:
    the columns to check; default: all."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not has_text(column.type) or (columns is not None and name not in columns):
            continue
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
            if is_text(column.type) and bytes_of(chunk).isascii():
                continue
            try:
                chunk.validate(full=True)
            except pa.ArrowInvalid:
                _refuse_other_bytes(rows, name, column, what, keys)


def refused(
    rows: pa.RecordBatch | pa.Table, position: int, column: str, why: str, keys: Collection[str] = ()
) -> RowRejected:
    """The error for a row that cannot be written. ``why`` continues a sentence that begins with the column."""
    row = row_at(rows, position)
    named = {name: row[name] for name in keys if row.get(name) is not None} or row
    return RowRejected(
        f"Row {described(named)} cannot be written: column {column!r} {why}. Correct or filter the row in the pipeline."
    )


def row_at(rows: pa.RecordBatch | pa.Table, position: int) -> dict[str, Any]:
    """One row as Python values; text that is not UTF-8 as its bytes."""
    return {
        name: _value(column.slice(position, 1)) for name, column in zip(rows.schema.names, rows.columns, strict=True)
    }


def described(row: dict[str, Any], hidden: Sequence[str] = ()) -> str:
    """One row for a message."""
    text = ", ".join(f"{name}={value!r}" for name, value in row.items() if name not in hidden)
    return text if len(text) <= _LONGEST_ROW else text[: _LONGEST_ROW - 1] + "…"


def _refuse_other_bytes(
    rows: pa.RecordBatch | pa.Table, name: str, column: pa.Array | pa.ChunkedArray, what: str, keys: Collection[str]
) -> None:
    for position in range(len(column)):
        try:
            column.slice(position, 1).to_pylist()
        except UnicodeDecodeError as error:
            why = f"holds text that is not UTF-8 ({error.object!r}), which {what} cannot represent"
            raise refused(rows, position, name, f"{why}; make_valid_utf8({name}) replaces such bytes", keys) from None


def _value(cell: pa.Array | pa.ChunkedArray) -> Any:
    try:
        return cell.to_pylist()[0]
    except UnicodeDecodeError as error:
        return error.object
    except (OverflowError, ValueError):  # a date that Python's types do not reach
        return str(cell.cast(pa.string()).to_pylist()[0])
