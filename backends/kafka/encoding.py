"""Encoders for a record's value: the bytes or the text of one column, a JSON object, or Avro."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import pyarrow as pa

from epochal.backends import csv_lines, json_lines
from epochal.backends.text_columns import check_utf8, is_text
from epochal.errors import SchemaError
from epochal.state.types import shown_type

FORMATS = ("json", "string", "raw", "avro")


class Encoder(ABC):
    """One format of values. Serialisable."""

    @abstractmethod
    def check(self, sink: str, schema: pa.Schema) -> None:
        """Check that these columns can be encoded. Raises ``SchemaError``."""

    @abstractmethod
    def values(self, sink: str, columns: pa.RecordBatch) -> pa.Array:
        """Return the values of the rows, binary; null is a tombstone. Raises ``RowRejected`` for a row that does not
        fit."""


@dataclass(frozen=True)
class JsonEncoder(Encoder):
    """One JSON object per row."""

    def check(self, sink: str, schema: pa.Schema) -> None:
        if not schema.names:
            raise SchemaError(f"{sink}: no column is left for the value.")

    def values(self, sink: str, columns: pa.RecordBatch) -> pa.Array:
        check_utf8(columns, "JSON")
        return as_text(columns).cast(pa.binary())


@dataclass(frozen=True)
class ColumnEncoder(Encoder):
    """One column without conversion. ``text``: any type with a text form; else a binary or string column."""

    text: bool

    def check(self, sink: str, schema: pa.Schema) -> None:
        format = "string" if self.text else "raw"
        if len(schema.names) != 1:
            raise SchemaError(
                f"{sink}: with format={format!r} the value is one column; name it: value='..'. Columns: "
                f"{', '.join(schema.names) or 'none'}."
            )
        type = schema.field(0).type
        fits = is_binary(type) or (is_text(type) or not pa.types.is_nested(type) if self.text else is_text(type))
        if not fits:
            raise SchemaError(
                f"{sink}: column {schema.names[0]!r} is {shown_type(type)}, which format={format!r} cannot write. "
                "Cast it, or use format='json'."
            )

    def values(self, sink: str, columns: pa.RecordBatch) -> pa.Array:
        return as_bytes(columns.column(0))


def as_bytes(column: pa.Array) -> pa.Array:
    """Return a column as bytes: binary unchanged, any other type as its text in UTF-8."""
    if is_binary(column.type):
        return column.cast(pa.binary())
    if is_text(column.type):
        return column.cast(pa.binary())
    if pa.types.is_nested(column.type):
        return json_lines.texts(column).cast(pa.binary())
    if pa.types.is_duration(column.type):
        return json_lines.intervals(column).cast(pa.binary())
    if pa.types.is_floating(column.type):
        return csv_lines.floats(column).cast(pa.binary())
    return column.cast(pa.string()).cast(pa.binary())


def as_text(columns: pa.RecordBatch) -> pa.Array:
    """Return each row as a JSON object."""
    return json_lines.objects(columns)


def is_binary(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type))
