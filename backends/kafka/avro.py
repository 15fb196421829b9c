"""Avro values: conversion of rows to records of a schema, and back. One record per value, without file header or
registry id.

Needs the package ``fastavro`` (``pip install 'epochal[avro]'``).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends.kafka.encoding import Encoder
from epochal.backends.text_columns import check_utf8, refused
from epochal.errors import EnvironmentProblem, RowRejected, SchemaError
from epochal.state.types import is_variant, spark_type
from epochal.tasks.values import python_values

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}

Decode = Callable[[bytes], dict[str, Any]]


@dataclass(frozen=True)
class AvroEncoder(Encoder):
    """Encoder for Avro. ``schema``: the Avro schema of a record, as JSON; its fields are columns."""

    schema: str

    def check(self, sink: str, schema: pa.Schema) -> None:
        fields = {field["name"]: field for field in parsed(self.schema)["fields"]}
        unknown = [name for name in schema.names if name not in fields]
        missing = [name for name, field in fields.items() if name not in schema.names and "default" not in field]
        if unknown or missing:
            what = f"has no field {unknown[0]!r}" if unknown else f"needs a column {missing[0]!r}"
            raise SchemaError(f"{sink}: the Avro schema {what}. Its fields are {', '.join(fields)}.")
        for field in schema:
            if _unknown_to_avro(field.type):
                raise SchemaError(
                    f"{sink}: column {field.name!r} is {spark_type(field.type)}, which Avro cannot hold. "
                    "Cast an interval to a number, and write a variant as to_json(..) of it."
                )
            avro = _type(field.name, fields[field.name]["type"])[0]
            if _loses(field.type, avro):
                raise SchemaError(
                    f"{sink}: column {field.name!r} is {spark_type(field.type)}, and the Avro schema's field is "
                    f"{spark_type(avro)}, which cannot represent every value. Cast the column, or widen the field."
                )

    def values(self, sink: str, columns: pa.RecordBatch) -> pa.Array:
        fastavro, schema = _fastavro(), parsed(self.schema)
        check_utf8(columns, "Avro")
        self._check_milliseconds(columns)
        encoded = []
        for values in zip(*map(python_values, columns.columns), strict=True):
            row = dict(zip(columns.schema.names, values, strict=True))
            buffer = io.BytesIO()
            try:
                fastavro.schemaless_writer(buffer, schema, row, strict=True)
            except Exception as error:  # noqa: BLE001  whatever it is in a row that fastavro cannot write
                raise RowRejected(
                    f"{sink}: the row {_short(row)} does not fit the Avro schema: {_reason(error)}. "
                    "Correct the schema, or the columns."
                ) from None
            encoded.append(buffer.getvalue())
        return pa.array(encoded, pa.binary())

    def _check_milliseconds(self, columns: pa.RecordBatch) -> None:
        """Refuse times with microseconds, which fastavro would truncate. Raises ``RowRejected``."""
        for field in parsed(self.schema)["fields"]:
            name = field["name"]
            if "timestamp-millis" not in json.dumps(field["type"]) or name not in columns.schema.names:
                continue
            times = columns.column(name)
            if pa.types.is_timestamp(times.type):
                cut = pc.fill_null(pc.not_equal(pc.floor_temporal(times, unit="millisecond"), times), False)
                position = pc.index(cut, True).as_py()
                if position >= 0:
                    raise refused(columns, position, name, "has microseconds, and the Avro schema's field has not")


@cache
def decoder(schema: str) -> Decode:
    """Return a function from a value's bytes to its record. The function raises fastavro's exceptions."""
    fastavro, known = _fastavro(), parsed(schema)

    def decode(value: bytes) -> dict[str, Any]:
        buffer = io.BytesIO(value)
        record: dict[str, Any] = fastavro.schemaless_reader(buffer, known)
        if buffer.tell() != len(value):
            raise ValueError(f"{len(value) - buffer.tell()} bytes are left over")
        return record

    return decode


@cache
def parsed(schema: str) -> dict[str, Any]:
    """Parse the schema of a record. Raises ``SchemaError``; ``EnvironmentProblem`` without fastavro."""
    fastavro = _fastavro()
    try:
        found = fastavro.parse_schema(json.loads(schema))
    except Exception as error:  # noqa: BLE001  whatever it is in the schema that fastavro cannot read
        raise SchemaError(f"The Avro schema cannot be read: {_reason(error)}.") from None
    if not isinstance(found, dict) or found.get("type") != "record":
        raise SchemaError("The Avro schema must be of a record: its fields become columns.")
    return found


def arrow_schema(schema: str) -> pa.Schema:
    """Return the columns of a record. Raises ``SchemaError`` for a field without a column type."""
    return pa.schema([_field(field) for field in parsed(schema)["fields"]])


def _unknown_to_avro(type: pa.DataType) -> bool:
    if pa.types.is_duration(type) or is_variant(type):
        return True
    return any(_unknown_to_avro(type.field(inner).type) for inner in range(type.num_fields))


def _loses(type: pa.DataType, avro: pa.DataType) -> bool:
    """Return whether the Avro field cannot hold all numbers of a column; fastavro would write them nevertheless."""
    if pa.types.is_integer(type):
        narrow = pa.types.is_integer(avro) and avro.bit_width < type.bit_width
        return bool(narrow or (pa.types.is_floating(avro) and avro.bit_width <= type.bit_width))
    return bool(pa.types.is_floating(type) and pa.types.is_float32(avro) and type.bit_width > avro.bit_width)


def _field(field: dict[str, Any]) -> pa.Field:
    type, nullable = _type(field["name"], field["type"])
    return pa.field(field["name"], type, nullable)


def _type(name: str, type: Any) -> tuple[pa.DataType, bool]:
    """Return the Arrow type, and whether null is allowed."""
    if isinstance(type, list):
        others = [inner for inner in type if inner != "null"]
        if len(others) != 1:
            raise SchemaError(f"Avro field {name!r} is a union of several types, which a column cannot represent.")
        return _type(name, others[0])[0], "null" in type
    if isinstance(type, str):
        if type not in _PRIMITIVES:
            raise SchemaError(f"Avro field {name!r} has type {type!r}, which a column cannot represent.")
        return _PRIMITIVES[type], False
    return _complex(name, type), False


def _complex(name: str, type: dict[str, Any]) -> pa.DataType:
    logical = type.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(type["precision"], type.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    match type["type"]:
        case "record":
            return pa.struct([_field(field) for field in type["fields"]])
        case "array":
            return pa.list_(_type(name, type["items"])[0])
        case "map":
            return pa.map_(pa.string(), _type(name, type["values"])[0])
        case "fixed":
            return pa.binary()
        case inner:
            return _type(name, inner)[0]


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise EnvironmentProblem("Avro needs the package fastavro: pip install 'epochal[avro]'.") from None
    return fastavro


def _reason(error: Exception) -> str:
    return f"{error.__class__.__name__}: {error}".splitlines()[0][:300].rstrip(".")


def _short(row: dict[str, Any]) -> str:
    text = str(row)
    return text if len(text) <= 200 else text[:199] + "…"
