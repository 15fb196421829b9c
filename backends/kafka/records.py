"""Conversion of rows to Kafka records: the role of each column, and the check of its type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends.kafka.encoding import Encoder, as_bytes, as_text
from epochal.errors import RowRejected, SchemaError
from epochal.state.types import shown_type

RECORD = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        pa.field("timestamp", pa.int64()),
    ]
)
"""Schema of the log. ``timestamp``: milliseconds. A null topic is the sink's own; a null partition is chosen by key."""

OVERHEAD = 100
"""Maximum number of bytes that Kafka adds to a record: the batch's header, lengths, offsets and times."""


@dataclass(frozen=True)
class RecordShape:
    """Columns by their role. ``value`` empty: all columns without another role; key columns are included."""

    encoder: Encoder
    topic: str | None
    topic_column: str | None = None
    value: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    headers: str | None = None
    timestamp: str | None = None
    partition: str | None = None

    def check(self, sink: str, schema: pa.Schema) -> None:
        """Raises ``SchemaError`` naming a column that is missing or whose type does not fit its role."""
        named = {
            "topic_column": (self.topic_column, _is_text),
            "headers": (self.headers, _is_headers),
            "timestamp": (self.timestamp, _is_time),
            "partition": (self.partition, pa.types.is_integer),
        }
        for option, (column, fits) in named.items():
            if column is not None and not fits(self._field(sink, schema, option, column).type):
                raise SchemaError(
                    f"{sink}: column {column!r} is {shown_type(schema.field(column).type)}, which cannot be "
                    f"{_MEANT[option]}."
                )
        for column in self.key:
            self._field(sink, schema, "key", column)
        for column in self.value:
            self._field(sink, schema, "value", column)
        self.encoder.check(sink, pa.schema([schema.field(name) for name in self.value_columns(schema)]))

    def value_columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns that make up the value."""
        if self.value:
            return list(self.value)
        others = {self.topic_column, self.headers, self.timestamp, self.partition}
        return [name for name in schema.names if name not in others]

    def encode(self, sink: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch's records, with schema ``RECORD``. Raises ``RowRejected`` for a row that cannot be a
        record."""
        rows = batch.num_rows
        values = self.encoder.values(sink, batch.select(self.value_columns(batch.schema)))
        arrays = {
            "topic": self._topics(sink, batch),
            "partition": self._column(batch, self.partition, pa.int32()),
            "key": self._keys(batch),
            "value": values,
            "headers": _headers(batch.column(self.headers)) if self.headers else None,
            "timestamp": _milliseconds(batch.column(self.timestamp)) if self.timestamp else None,
        }
        filled = [
            pa.nulls(rows, field.type) if (array := arrays[field.name]) is None else array.cast(field.type)
            for field in RECORD
        ]
        return pa.RecordBatch.from_arrays(filled, schema=RECORD)

    def _topics(self, sink: str, batch: pa.RecordBatch) -> pa.Array | None:
        if self.topic_column is None:
            return None
        topics = batch.column(self.topic_column)
        if self.topic is None and topics.null_count:
            raise RowRejected(
                f"{sink}: a row has no topic: column {self.topic_column!r} is null. Fill it, or give the sink a topic "
                "for such rows."
            )
        return topics

    def _keys(self, batch: pa.RecordBatch) -> pa.Array | None:
        if not self.key:
            return None
        if len(self.key) == 1:
            return as_bytes(batch.column(self.key[0]))
        return as_text(batch.select(list(self.key))).cast(pa.binary())

    def _column(self, batch: pa.RecordBatch, name: str | None, type: pa.DataType) -> pa.Array | None:
        return None if name is None else batch.column(name).cast(type)

    def _field(self, sink: str, schema: pa.Schema, option: str, column: str) -> pa.Field:
        if column not in schema.names:
            raise SchemaError(
                f"{sink}: {option} names column {column!r}, which does not exist. Columns: {', '.join(schema.names)}."
            )
        return schema.field(column)


def sizes(records: pa.RecordBatch) -> pa.Array:
    """Return the maximum size in bytes of each record at the broker, before compression."""
    total = pc.add(_length(records.column("key")), _length(records.column("value")))
    headers = records.column("headers")
    if headers.null_count < records.num_rows:
        counted = [
            sum(len(entry["name"].encode()) + len(entry["value"] or b"") + 10 for entry in entries or ())
            for entries in headers.to_pylist()
        ]
        total = pc.add(total, pa.array(counted, pa.int64()))
    return pc.add(total, OVERHEAD)


def key_text(key: bytes | None) -> str:
    """Format a record's key for a message: as text where possible, shortened for readers."""
    if key is None:
        return "null"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = key.hex()
    text = "".join(character if character.isprintable() else "?" for character in text)
    return repr(text if len(text) <= 80 else text[:79] + "…")


def names_of(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Normalise ``None``, one column or several to a tuple."""
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


_MEANT = {
    "topic_column": "a topic: it must be a string",
    "headers": "headers: they are a map<string, string> or map<string, binary>",
    "timestamp": "a record's timestamp: it is a timestamp, or a bigint of milliseconds",
    "partition": "a partition: it must be an int",
}


def _length(column: pa.Array) -> Any:
    return pc.cast(pc.fill_null(pc.binary_length(column), 0), pa.int64())


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


def _is_headers(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_map(type)
        and _is_text(type.key_type)
        and (_is_text(type.item_type) or pa.types.is_binary(type.item_type))
    )


def _is_time(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type) or pa.types.is_int64(type))


def _milliseconds(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64())
    return column


def _headers(column: pa.Array) -> pa.Array:
    entries = [
        None
        if row is None
        else [{"name": name, "value": value.encode() if isinstance(value, str) else value} for name, value in row]
        for row in column.to_pylist()
    ]
    return pa.array(entries, RECORD.field("headers").type)
