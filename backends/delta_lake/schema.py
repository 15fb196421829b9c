"""Columns of a Delta table and of rows: which types fit, and which features of a table the sink can respect."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema

from epochal.backends.tables.folder import LEAST_RETENTION_SECONDS, first_line
from epochal.errors import SchemaError, SinkError

_PARTITION_TYPES: Final = ("string", "byte", "short", "integer", "long", "boolean", "date")
"""Types whose values have one text in the log, which every reader reads alike."""
_UNIT_SECONDS: Final = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
_WRITTEN_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features that a table may list. Those that would need work at each write are refused if a table uses them."""

Columns = Mapping[str, Any]
"""Columns by name, with the type as the log has it: a text, or an object for a nested type."""


def physical_schema(subject: str, schema: pa.Schema) -> pa.Schema:
    """The columns as a Delta table has them. Raises ``SchemaError`` for types that Delta does not have."""
    try:
        return pa.schema(Schema.from_arrow(schema))
    except Exception as error:  # the library raises several classes, among them the root class
        raise SchemaError(
            f"{subject} cannot write these columns: {first_line(error)}. Cast them to types that Delta has: integers "
            "with a sign, float, double, decimal, boolean, string, binary, date, timestamp, array, map, struct."
        ) from error


def columns_of(schema: pa.Schema | Schema) -> dict[str, Any]:
    """Columns with their types."""
    delta = schema if isinstance(schema, Schema) else Schema.from_arrow(schema)
    return {field["name"]: field["type"] for field in json.loads(delta.to_json())["fields"]}


def check_rows(subject: str, table: DeltaTable, rows: Columns, otherwise: str = "") -> None:
    """Check that rows with these columns can be appended. ``otherwise``: end of the message. Raises ``SchemaError``,
    naming all columns that do not fit."""
    fields = {field["name"]: field for field in json.loads(table.schema().to_json())["fields"]}
    wrong = [_mismatch(name, type, fields.get(name)) for name, type in rows.items()]
    partitions = table.metadata().partition_columns
    for name, field in fields.items():
        if name not in rows and name in partitions:
            wrong.append(f"column {name!r}, by which the table is partitioned, is missing")
        elif name not in rows and not field["nullable"]:
            wrong.append(f"column {name!r}, which is NOT NULL, is missing")
    found = [each for each in wrong if each is not None]
    if found:
        raise SchemaError(
            f"{subject} cannot append these rows to the table: {'; '.join(found)}. Change the columns with select or "
            f"with_columns, or change the table.{otherwise}"
        )


def retention_warning(subject: str, table: DeltaTable) -> str | None:
    """A warning if ``VACUUM`` may delete staged files before their commit."""
    name = "delta.deletedFileRetentionDuration"
    found = table.metadata().configuration.get(name)
    seconds = None if found is None else _seconds(found)
    if seconds is None or seconds >= LEAST_RETENTION_SECONDS:
        return None
    return (
        f"{subject}: {name} of the table is {found!r}. VACUUM then deletes files of epochs that wait longer than this "
        "for their commit, and the sink stops. Set it to at least 'interval 24 hours'."
    )


def _seconds(interval: str) -> float | None:
    """The length of an interval such as ``interval 12 hours``; ``None`` if it has another form."""
    words = interval.lower().removeprefix("interval").split()
    numbers, units = words[::2], [word.rstrip("s") for word in words[1::2]]
    if not words or len(words) % 2 or any(unit not in _UNIT_SECONDS for unit in units):
        return None
    try:
        return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in zip(numbers, units, strict=True))
    except ValueError:
        return None


def required_columns(table: DeltaTable) -> frozenset[str]:
    """Columns that are NOT NULL."""
    return frozenset(field["name"] for field in json.loads(table.schema().to_json())["fields"] if not field["nullable"])


def check_partitions(subject: str, columns: Columns, partition_by: Iterable[str]) -> None:
    """Raises ``SchemaError`` for a missing partition column, and for types by which the sink does not partition."""
    for name in partition_by:
        if name not in columns:
            raise SchemaError(
                f"{subject} is partitioned by {name!r}, which is not a column of the rows. Columns: "
                f"{', '.join(columns)}."
            )
        if columns[name] not in _PARTITION_TYPES:
            raise SchemaError(
                f"{subject} cannot be partitioned by {name!r}, whose type is {shown_type(columns[name])}. Partition by "
                "a string, an integer, a boolean or a date, such as with_columns(day='to_date(time)')."
            )


def check_features(subject: str, table: DeltaTable) -> None:
    """Raises ``SinkError`` for a table that other writers may write, and this one would corrupt or forget."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    unknown = sorted(set(protocol.writer_features or ()) - _WRITTEN_FEATURES)
    fields = json.loads(table.schema().to_json())["fields"]
    used = [
        *(f"the feature {name}" for name in unknown),
        *(f"the CHECK constraint {name[18:]}" for name in configuration if name.startswith("delta.constraints.")),
        *(
            f"the column {field['name']}, which is {what}"
            for field in fields
            for key, what in _COLUMN_FEATURES.items()
            if any(name.startswith(key) for name in field["metadata"])
        ),
        *(["column mapping"] if configuration.get("delta.columnMapping.mode", "none") != "none" else []),
        *(["row tracking"] if configuration.get("delta.enableRowTracking", "false") == "true" else []),
        *(["nested columns that are NOT NULL"] if any(_requires_nested(field["type"]) for field in fields) else []),
    ]
    if used:
        raise SinkError(
            f"{subject} cannot write a table with {', '.join(used)}: the library does not enforce it, so that readers "
            "could see rows that the table forbids. Write to a table without it."
        )
    if "delta.setTransactionRetentionDuration" in configuration:
        raise SinkError(
            f"{subject} has delta.setTransactionRetentionDuration, by which the table forgets the epoch that it shows. "
            "Unset the property: ALTER TABLE .. UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')."
        )


def check_replaceable(subject: str, table: DeltaTable) -> None:
    """Raises ``SinkError`` for a table whose rows must not be replaced."""
    if table.metadata().configuration.get("delta.appendOnly", "false").lower() == "true":
        raise SinkError(
            f"{subject} replaces rows by keys, and the table has delta.appendOnly. Unset the property, or remove keys."
        )


_COLUMN_FEATURES: Final = {
    "delta.generationExpression": "generated",
    "delta.identity.": "an identity column",
    "delta.invariants": "restricted by an invariant",
}


def _requires_nested(type: Any) -> bool:
    """Return whether a nested value must not be null: tasks check the columns of the table alone."""
    if not isinstance(type, dict):
        return False
    match type["type"]:
        case "struct":
            return any(not field["nullable"] or _requires_nested(field["type"]) for field in type["fields"])
        case "array":
            return not type["containsNull"] or _requires_nested(type["elementType"])
        case _:
            return not type["valueContainsNull"] or _requires_nested(type["valueType"])


def _mismatch(name: str, type: Any, field: Mapping[str, Any] | None) -> str | None:
    if field is None:
        return f"the table has no column {name!r}"
    if _comparable(type) != _comparable(field["type"]):
        return f"column {name!r} is {shown_type(type)}, and in the table {shown_type(field['type'])}"
    return None


def _comparable(type: Any) -> Any:
    """The type without the metadata of nested fields, and without what may be null."""
    if not isinstance(type, dict):
        return type
    dropped = ("metadata", "nullable", "containsNull", "valueContainsNull")
    return {
        name: [_comparable(each) for each in value] if isinstance(value, list) else _comparable(value)
        for name, value in type.items()
        if name not in dropped
    }


def shown_type(type: Any) -> str:
    """The type in messages."""
    return type if isinstance(type, str) else json.dumps(_comparable(type))
