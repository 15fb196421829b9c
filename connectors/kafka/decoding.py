"""Kafka messages to Arrow columns, in the tasks. A value that does not fit is marked, not raised: see ``source``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from confluent_kafka import Message

from epochal.backends.kafka.avro import arrow_schema, decoder

Messages: TypeAlias = "Sequence[Message[Any, Any]]"

VALUE, CORRUPT = "_epochal_value", "_epochal_corrupt"
TOPIC, PARTITION, OFFSET = "_epochal_topic", "_epochal_partition", "_epochal_offset"

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
METADATA: dict[str, pa.DataType] = {
    "key": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": HEADERS,
}


class ValueDecoder(ABC):
    """One format. ``schema`` are the columns that the task gives for the value. Serialisable."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema: ...

    @abstractmethod
    def columns(self, messages: Messages) -> tuple[list[pa.Array], list[str | None] | None]:
        """The columns, and for each message why its value does not fit; ``None`` when all do."""


@dataclass(frozen=True)
class BytesDecoder(ValueDecoder):
    """The value as it is, under ``name``."""

    name: str

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(self.name, pa.binary())])

    def columns(self, messages: Messages) -> tuple[list[pa.Array], list[str | None] | None]:
        return [pa.array([message.value() for message in messages], pa.binary())], None


@dataclass(frozen=True)
class TextDecoder(ValueDecoder):
    """The value as UTF-8 text, under ``name``."""

    name: str

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(self.name, pa.string())])

    def columns(self, messages: Messages) -> tuple[list[pa.Array], list[str | None] | None]:
        values = [message.value() for message in messages]
        texts, reasons = _texts(values)
        return [texts], reasons


@dataclass(frozen=True)
class AvroDecoder(ValueDecoder):
    """The value's record, each field a column."""

    avro: str

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([field.with_nullable(True) for field in arrow_schema(self.avro)])

    def columns(self, messages: Messages) -> tuple[list[pa.Array], list[str | None] | None]:
        decode = decoder(self.avro)
        records: list[dict[str, Any]] = []
        reasons: list[str | None] = []
        for message in messages:
            value, reason = message.value(), None
            try:
                record = {} if value is None else decode(value)
            except Exception as error:  # noqa: BLE001  whatever bytes do to fastavro: they are not such a record
                record, reason = {}, f"it does not fit the Avro schema ({type(error).__name__}: {error})"
            records.append(record)
            reasons.append(reason)
        arrays = [pa.array([_plain(record.get(field.name)) for record in records], field.type) for field in self.schema]
        return arrays, reasons if any(reasons) else None


@dataclass(frozen=True)
class Columns:
    """What a task gives of each message: the value's columns, ``metadata`` as (name, what), and why it does not fit.

    ``located``: also where it was, in columns, for what only Spark can find not to fit. Else the reason says it.
    """

    value: ValueDecoder
    metadata: tuple[tuple[str, str], ...]
    key_format: str
    located: bool

    @property
    def schema(self) -> pa.Schema:
        fields = list(self.value.schema)
        fields += [pa.field(name, self.type_of(what)) for name, what in self.metadata]
        if self.may_not_fit:
            fields.append(pa.field(CORRUPT, pa.string()))
        if self.located:
            fields += [pa.field(TOPIC, pa.string()), pa.field(PARTITION, pa.int32()), pa.field(OFFSET, pa.int64())]
        return pa.schema(fields)

    @property
    def may_not_fit(self) -> bool:
        """Bytes always fit: then nobody asks where a record was."""
        return not isinstance(self.value, BytesDecoder) or any(
            what == "key" and self.key_format != "raw" for _, what in self.metadata
        )

    def type_of(self, what: str) -> pa.DataType:
        """The type of one of ``METADATA``."""
        return pa.binary() if what == "key" and self.key_format == "raw" else METADATA[what]

    def batch(self, messages: Messages) -> pa.RecordBatch:
        """All of it for these messages."""
        arrays, reasons = self.value.columns(messages)
        for _, what in self.metadata:
            array, unfit = self._metadata(what, messages)
            arrays.append(array)
            if unfit is not None:
                reasons = [first or second for first, second in zip(reasons or unfit, unfit, strict=True)]
        if self.may_not_fit:
            arrays.append(self._reasons(messages, reasons))
        if self.located:
            arrays += [self._metadata(what, messages)[0] for what in ("topic", "partition", "offset")]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _reasons(self, messages: Messages, reasons: list[str | None] | None) -> pa.Array:
        if reasons is None:
            return pa.nulls(len(messages), pa.string())
        if not self.located:
            reasons = [
                reason and f"{place(message.topic(), message.partition(), message.offset())}: {reason}"
                for message, reason in zip(messages, reasons, strict=True)
            ]
        return pa.array(reasons, pa.string())

    def _metadata(self, what: str, messages: Messages) -> tuple[pa.Array, list[str | None] | None]:
        match what:
            case "key" if self.key_format == "raw":
                return pa.array([message.key() for message in messages], pa.binary()), None
            case "key":
                texts, reasons = _texts([message.key() for message in messages])
                return texts, [reason and f"its key: {reason}" for reason in reasons] if reasons else None
            case "topic":
                return pa.array([message.topic() for message in messages], pa.string()), None
            case "partition":
                return pa.array([message.partition() for message in messages], pa.int32()), None
            case "offset":
                return pa.array([message.offset() for message in messages], pa.int64()), None
            case "timestamp":
                moments = pa.array([_milliseconds(message) for message in messages], pa.int64())
                return moments.cast(pa.timestamp("ms", "UTC")).cast(METADATA["timestamp"]), None
            case _:
                return pa.array([_headers(message) for message in messages], HEADERS), None


def place(topic: str | None, partition: int | None, offset: int | None) -> str:
    """Where a record is, for a message."""
    return f"offset {offset} of topic {topic}, partition {partition}"


def _texts(values: list[Any]) -> tuple[pa.Array, list[str | None] | None]:
    """As text; where some are not UTF-8, those are null, and the reasons say so."""
    bytes_ = pa.array(values, pa.binary())
    try:
        return bytes_.cast(pa.string()), None
    except pa.ArrowInvalid:
        reasons = [_not_text(value) for value in values]
        fit = [None if reason else value for value, reason in zip(values, reasons, strict=True)]
        return pa.array(fit, pa.binary()).cast(pa.string()), reasons


def _not_text(value: bytes | None) -> str | None:
    try:
        (value or b"").decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 text (byte {error.start})"
    return None


def _milliseconds(message: Message[Any, Any]) -> int | None:
    kind, moment = message.timestamp()
    return moment if kind else None


def _headers(message: Message[Any, Any]) -> list[dict[str, Any]] | None:
    headers = message.headers()
    if headers is None:
        return None
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [{"name": name, "value": value.encode() if isinstance(value, str) else value} for name, value in pairs]


def _plain(value: Any) -> Any:
    return str(value) if type(value).__name__ == "UUID" else value
