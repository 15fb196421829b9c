"""Arrow to CSV, column by column, in the dialect that Spark's CSV reader reads with its default options.

Text is in quotation marks; a quotation mark and a backslash within it are escaped by a backslash. A null is an empty
field. NaN and infinities are written as Spark writes them. Text with a line break is refused: Spark splits a file into
lines before it looks at quotation marks, and with ``multiLine`` it reads ``\\r\\n`` as ``\\n``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends.text_columns import bytes_of, check_utf8, is_text, refused


def header(schema: pa.Schema) -> bytes:
    """The first line. Raises ``SinkError`` for a name with a line break."""
    return encode(pa.RecordBatch.from_pydict({str(place): [name] for place, name in enumerate(schema.names)}))


def encode(batch: pa.RecordBatch) -> bytes:
    """A line for each row, in UTF-8. Raises ``SinkError`` for a value that CSV cannot represent."""
    if batch.num_rows == 0:
        return b""
    check_utf8(batch, "CSV")
    pieces: list[Any] = []
    before = ""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        quote = '"' if is_text(column.type) else ""
        texts = _texts(batch, name, column)
        if column.null_count and quote:  # a null is without quotation marks
            texts, quote = pc.binary_join_element_wise(quote, texts, quote, ""), ""
        pieces += [before + quote, pc.fill_null(texts, "") if column.null_count else texts]
        before = quote + ","
    return bytes_of(pc.binary_join_element_wise(*pieces, before[:-1] + "\n", ""))


def _texts(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.Array:
    if is_text(column.type):
        return _escaped(batch, name, column.cast(pa.string()))
    if pa.types.is_timestamp(column.type):
        return timestamps(column)
    return floats(column) if pa.types.is_floating(column.type) else column.cast(pa.string())


def _escaped(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.Array:
    data = bytes_of(column)
    if b"\n" in data or b"\r" in data:
        broken = pc.fill_null(pc.match_substring_regex(column, "[\r\n]"), False)
        position = pc.index(broken, True).as_py()
        if position >= 0:
            why = "holds a line break, which Spark's CSV reader takes for the end of the row; write json or parquet"
            raise refused(batch, position, name, why)
    if b"\\" in data:
        column = pc.replace_substring(column, "\\", "\\\\")
    return pc.replace_substring(column, '"', '\\"') if b'"' in data else column


def floats(column: pa.Array) -> pa.Array:
    """Floating-point numbers as Java's and Spark's casts read them: ``NaN``, ``Infinity``, ``-0.0``."""
    text = column.cast(pa.string())
    minus = pc.equal(text, "-0")
    if pc.any(minus, min_count=0).as_py():
        text = pc.if_else(minus, "-0.0", text)
    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return text
    infinite = pc.if_else(pc.greater(column, 0), "Infinity", "-Infinity")
    return pc.if_else(pc.is_finite(column), text, pc.if_else(pc.is_nan(column), "NaN", infinite))


def timestamps(column: pa.Array) -> pa.Array:
    """``2026-05-01 12:00:00.000000``, with ``Z`` at the end of an instant."""
    if column.type.tz is None:
        return column.cast(pa.string())
    # Arrow's own text of an instant is the same, and ten times slower.
    return pc.binary_join_element_wise(column.cast(pa.timestamp(column.type.unit)).cast(pa.string()), "Z", "")
