"""Decoding of Kafka records to Arrow columns, in tasks. Values that do not fit are marked or raised: see ``source``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends.kafka.avro import arrow_schema, decoder
from epochal.connectors.kafka.records import HEADERS, Records
from epochal.errors import MalformedRecord

VALUE, CORRUPT = "_epochal_value", "_epochal_corrupt"
TOPIC, PARTITION, OFFSET = "_epochal_topic", "_epochal_partition", "_epochal_offset"
MISFIT = "A record does not fit, at %s. Correct the schema, or let the source drop such records (malformed='drop')."
"""Message format; the argument is the record's place and the reason."""
TOMBSTONE = (
    "The record at %s has no value (a tombstone), and the source has tombstones='fail'. Use tombstones='drop' to skip "
    "such records, or tombstones='row' to read them as rows whose value columns are null."
)
"""Message format; the argument is the record's place."""
Tombstones = Literal["row", "drop", "fail"]
TOMBSTONES = ("row", "drop", "fail")

METADATA: dict[str, pa.DataType] = {
    "key": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": HEADERS,
}


class ValueDecoder(ABC):
    """Decoder of one format. ``schema``: the columns that the task returns for the value. Serialisable."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema: ...

    @abstractmethod
    def columns(self, values: pa.Array) -> tuple[list[pa.Array], list[str | None] | None]:
        """The columns of the records' values, and the reason for each that does not fit; ``None`` if all fit."""


@dataclass(frozen=True)
class BytesDecoder(ValueDecoder):
    """The unchanged value, in the column ``name``."""

    name: str

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(self.name, pa.binary())])

    def columns(self, values: pa.Array) -> tuple[list[pa.Array], list[str | None] | None]:
        return [values], None


@dataclass(frozen=True)
class TextDecoder(ValueDecoder):
    """The value as UTF-8 text, in the column ``name``."""

    name: str

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(self.name, pa.string())])

    def columns(self, values: pa.Array) -> tuple[list[pa.Array], list[str | None] | None]:
        texts, reasons = as_texts(values)
        return [texts], reasons


@dataclass(frozen=True)
class AvroDecoder(ValueDecoder):
    """The value as an Avro record, with a column per field."""

    avro: str

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([field.with_nullable(True) for field in arrow_schema(self.avro)])

    def columns(self, values: pa.Array) -> tuple[list[pa.Array], list[str | None] | None]:
        decode = decoder(self.avro)
        records: list[dict[str, Any]] = []
        reasons: list[str | None] = []
        for value in values.to_pylist():
            reason = None
            try:
                record = {} if value is None else decode(value)
            except Exception as error:  # noqa: BLE001  fastavro raises many types for invalid bytes
                record, reason = {}, f"it does not fit the Avro schema ({type(error).__name__}: {error})"
            records.append(record)
            reasons.append(reason)
        arrays = [pa.array([_plain(record.get(field.name)) for record in records], field.type) for field in self.schema]
        return arrays, reasons if any(reasons) else None


@dataclass(frozen=True)
class Columns:
    """Columns that a task returns: those of the value, ``metadata`` as (name, what), and the reason for a misfit.

    - ``located``: also return columns with the record's place, for records that only Spark can check. The columns are
      null if Spark has nothing to check. If not ``located``, the reason contains the place.
    - ``refusing``: raise an error for a record that does not fit, instead of returning a column with the reason.
    - ``unread``: columns that are not returned. Their contents must fit as well.
    - ``tombstones``: handling of records without a value. It does not depend on the format or the columns read.
    """

    value: ValueDecoder
    metadata: tuple[tuple[str, str], ...]
    key_format: str
    located: bool
    refusing: bool = False
    unread: frozenset[str] = frozenset()
    tombstones: Tombstones = "row"

    @cached_property
    def schema(self) -> pa.Schema:
        fields = list(self.value.schema)
        fields += [pa.field(name, self.type_of(what)) for name, what in self.metadata]
        fields = [field for field in fields if field.name not in self.unread]
        if self.marking:
            fields.append(pa.field(CORRUPT, pa.string()))
        if self.located:
            fields += [pa.field(TOPIC, pa.string()), pa.field(PARTITION, pa.int32()), pa.field(OFFSET, pa.int64())]
        return pa.schema(fields)

    @property
    def marking(self) -> bool:
        """True if a column holds the reason that a record does not fit."""
        return self.may_not_fit and not self.refusing

    @property
    def may_not_fit(self) -> bool:
        """True if records may not fit. Bytes always fit."""
        return not isinstance(self.value, BytesDecoder) or any(
            what == "key" and self.key_format != "raw" for _, what in self.metadata
        )

    def type_of(self, what: str) -> pa.DataType:
        """The Arrow type of one of ``METADATA``."""
        return pa.binary() if what == "key" and self.key_format == "raw" else METADATA[what]

    @property
    def parts(self) -> frozenset[str]:
        """The parts of records to read in addition to their values."""
        return frozenset(what for name, what in self.metadata if self._is_looked_at(name, what))

    def _is_looked_at(self, name: str, what: str) -> bool:
        return name not in self.unread or (what == "key" and self.key_format != "raw")

    def batch(self, records: Records) -> pa.RecordBatch:
        """Decode these records.

        Raises ``MalformedRecord`` for a record that does not fit if ``refusing``, and for a tombstone if ``tombstones``
        is ``fail``.
        """
        records = self._with_tombstones_handled(records)
        decoded, reasons = self.value.columns(records.values)
        arrays = dict(zip(self.value.schema.names, decoded, strict=True))
        for name, what in self.metadata:
            if self._is_looked_at(name, what):
                arrays[name], unfit = self._metadata(what, records)
                if unfit is not None:
                    reasons = [first or second for first, second in zip(reasons or unfit, unfit, strict=True)]
        columns = [array for name, array in arrays.items() if name not in self.unread]
        if self.may_not_fit and self.refusing:
            self._refuse(records, reasons)
        elif self.may_not_fit:
            columns.append(self._reasons(records, reasons))
        if self.located:
            left = arrays[VALUE]  # only Spark can check these
            columns += self._locations(records, needed=reasons is not None or left.null_count < len(left))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _with_tombstones_handled(self, records: Records) -> Records:
        if self.tombstones == "row" or records.values.null_count == 0:
            return records
        valid = records.values.is_valid().to_numpy(zero_copy_only=False)
        if self.tombstones == "fail":
            raise MalformedRecord(TOMBSTONE % place(*records.where(int(valid.argmin()))))
        return records.only(valid)

    def _refuse(self, records: Records, reasons: list[str | None] | None) -> None:
        for row, reason in enumerate(reasons or ()):
            if reason is not None:
                raise MalformedRecord(MISFIT % f"{place(*records.where(row))}: {reason}")

    def _locations(self, records: Records, needed: bool) -> list[pa.Array]:
        if needed:
            return [self._metadata(what, records)[0] for what in ("topic", "partition", "offset")]
        return [pa.nulls(len(records), type) for type in (pa.string(), pa.int32(), pa.int64())]

    def _reasons(self, records: Records, reasons: list[str | None] | None) -> pa.Array:
        if reasons is None:
            return pa.nulls(len(records), pa.string())
        if not self.located:
            reasons = [reason and f"{place(*records.where(row))}: {reason}" for row, reason in enumerate(reasons)]
        return pa.array(reasons, pa.string())

    def _metadata(self, what: str, records: Records) -> tuple[pa.Array, list[str | None] | None]:
        match what:
            case "key" if self.key_format == "raw":
                return records.keys, None
            case "key":
                texts, reasons = as_texts(records.keys)
                return texts, [reason and f"its key: {reason}" for reason in reasons] if reasons else None
            case "topic":
                return records.topics, None
            case "partition":
                return records.partitions, None
            case "offset":
                return pa.array(records.offsets), None
            case "timestamp":
                moments = pc.cast(records.timestamps, pa.timestamp("ms", "UTC"))
                return moments.cast(METADATA["timestamp"]), None
            case _:
                return records.headers, None


def place(topic: str, partition: int, offset: int) -> str:
    """The place of a record, for messages."""
    return f"offset {offset} of topic {topic}, partition {partition}"


def as_texts(values: pa.Array) -> tuple[pa.Array, list[str | None] | None]:
    """The values as text, and the reasons for invalid ones. Values that are not valid UTF-8 are null."""
    try:
        return values.cast(pa.string()), None
    except pa.ArrowInvalid:
        reasons = [_not_text(value) for value in values.to_pylist()]
        fits = pa.array([reason is None for reason in reasons])
        return pc.if_else(fits, values, pa.scalar(None, pa.binary())).cast(pa.string()), reasons


def _not_text(value: bytes | None) -> str | None:
    try:
        (value or b"").decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 text (byte {error.start})"
    return None


def _plain(value: Any) -> Any:
    return str(value) if type(value).__name__ == "UUID" else value
