"""Columns and partitions of an Iceberg table: which rows it can take, and which changes files survive."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible, _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import TableVersion

from epochal.backends.tables.folder import LEAST_RETENTION_SECONDS
from epochal.contracts.backend import DecidedEpoch
from epochal.errors import OptionError, SchemaError, SinkError

_FIRST_PARTITION_FIELD: Final = 1000
_TRANSFORM: Final = re.compile(r"(?P<function>\w+)\((?:(?P<number>\d+)\s*,\s*)?(?P<column>[^()]+)\)")
_BY_TIME: Final[Mapping[str, Callable[[], Transform[Any, Any]]]] = {
    "year": YearTransform,
    "month": MonthTransform,
    "day": DayTransform,
    "hour": HourTransform,
}
_BY_NUMBER: Final[Mapping[str, Callable[[int], Transform[Any, Any]]]] = {
    "bucket": BucketTransform,
    "truncate": TruncateTransform,
}


def check_supported(subject: str, metadata: TableMetadata) -> None:
    """Raises ``SinkError`` for a table whose format the sink does not write."""
    if metadata.format_version not in (1, 2):
        raise SinkError(
            f"{subject} has format version {metadata.format_version}, and the library writes 1 and 2. Write to a "
            "table of version 2."
        )
    format = metadata.properties.get("write.format.default", "parquet")
    if format.lower() != "parquet":
        raise SinkError(f"{subject}: write.format.default is {format}, and the sink writes Parquet. Set it to parquet.")


def retention_warning(subject: str, metadata: TableMetadata) -> str | None:
    """A warning if snapshots may expire within a day. The format has no setting for the age of orphaned files."""
    name = "history.expire.max-snapshot-age-ms"
    found = metadata.properties.get(name, "")
    if not found.isdigit() or int(found) >= LEAST_RETENTION_SECONDS * 1000 or not _expires(metadata):
        return None
    return (
        f"{subject}: {name} of the table is {found}, less than 24 hours. After expire_snapshots, an application that "
        "reads the table and was stopped for longer cannot continue, and the table cannot be restored after a "
        f"rollback. Set it to at least {int(LEAST_RETENTION_SECONDS * 1000)}."
    )


def _expires(metadata: TableMetadata) -> bool:
    return metadata.properties.get("gc.enabled", "true").lower() != "false"


def check_rows(
    subject: str, schema: Schema, format_version: TableVersion, rows: pa.Schema, otherwise: str = ""
) -> pa.Schema:
    """The columns as the table has them: those that it requires are not null. ``schema``: columns of the table;
    ``otherwise``: end of the message. Raises ``SchemaError``."""
    required = {field.name for field in schema.fields if field.required}
    typed = pa.schema([field.with_nullable(field.name not in required) for field in rows])
    try:
        _check_pyarrow_schema_compatible(schema, typed, format_version=format_version)
    except Exception as error:  # the library raises several classes, among them the root class
        raise SchemaError(
            f"{subject} cannot append these rows to the table: {' '.join(str(error).split())}. Change the columns with "
            f"select or with_columns, or change the table.{otherwise}"
        ) from error
    missing = sorted(required - set(rows.names))
    if missing:
        raise SchemaError(
            f"{subject}: the rows do not have {', '.join(missing)}, which the table requires. Add them with "
            "with_columns, or make them optional in the table."
        )
    return typed


def check_evolved(
    subject: str,
    sink: str,
    metadata: TableMetadata,
    number: int,
    entries: Collection[Mapping[str, Any]],
    epochs: Sequence[DecidedEpoch],
) -> None:
    """Check that files that were written with schema ``number`` still belong to the table. Raises ``SinkError``."""
    changed = _schema_changes(metadata, number)
    if any(entry["spec"] != metadata.default_spec_id for entry in entries):
        changed.append("its partitions were changed")
    if changed:
        scope = epochs[-1].scope
        raise SinkError(
            f"{subject} cannot commit epoch {scope.epoch}: the table was changed after the epoch was computed: "
            f"{'; '.join(changed)}. Nothing was written. Undo the change; the commit is then retried. Or drop the "
            f"epoch's rows in this sink: `epochal transaction abort {scope.application} {sink} {scope.epoch}`."
        )


def new_schema(subject: str, rows: pa.Schema) -> Schema:
    """Schema of a new table with these columns. Raises ``SchemaError``."""
    try:
        return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(rows))
    except Exception as error:  # as above
        raise SchemaError(
            f"{subject} cannot write these columns: {' '.join(str(error).split())}. Cast them to types of Iceberg."
        ) from error


def new_partitions(subject: str, schema: Schema, partition_by: Sequence[str]) -> PartitionSpec:
    """Partitions of a new table: columns, or ``day(time)``, ``bucket(16, id)``. Raises ``SchemaError``."""
    fields = []
    for place, text in enumerate(partition_by):
        column, transform, name = partition_of(subject, text)
        try:
            source = schema.find_field(column)
        except ValueError:
            raise SchemaError(
                f"{subject} is partitioned by {text!r}, and {column!r} is not a column of the rows. Columns: "
                f"{', '.join(field.name for field in schema.fields)}."
            ) from None
        if not transform.can_transform(source.field_type):
            raise SchemaError(f"{subject} cannot be partitioned by {text!r}: {column!r} is {source.field_type}.")
        fields.append(PartitionField(source.field_id, _FIRST_PARTITION_FIELD + place, transform, name))
    return PartitionSpec(*fields)


def partition_of(what: str, text: str) -> tuple[str, Transform[Any, Any], str]:
    """Column, transform and name of a partition, from the option. Raises ``OptionError``."""
    found = _TRANSFORM.fullmatch(text.strip())
    if found is None:
        return text.strip(), IdentityTransform(), text.strip()
    function, number, column = found["function"], found["number"], found["column"].strip()
    if function in _BY_TIME and number is None:
        return column, _BY_TIME[function](), f"{column}_{function}"
    if function in _BY_NUMBER and number is not None and int(number) > 0:
        return column, _BY_NUMBER[function](int(number)), f"{column}_{function}"
    raise OptionError(
        f"{what}: {text!r} is not a partition. Write a column, or year, month, day or hour of one, such as day(time), "
        "or bucket(16, id), or truncate(10, name)."
    )


def _schema_changes(metadata: TableMetadata, number: int) -> list[str]:
    """Changes of the columns since schema ``number`` that files with it do not survive, as text."""
    now = metadata.schema()
    if metadata.current_schema_id == number:
        return []
    then = metadata.schema_by_id(number)
    if then is None:
        return ["the schema with which it was computed is unknown to the table"]
    changed = []
    for id, field in then._lazy_id_to_field.items():
        after = now._lazy_id_to_field.get(id)
        if after is None:
            changed.append(f"column {field.name!r} was dropped")
        elif after.field_type.is_primitive and after.field_type != field.field_type:
            changed.append(
                f"the type of column {field.name!r} was changed from {field.field_type} to {after.field_type}"
            )
        elif after.required and not field.required:
            changed.append(f"column {field.name!r} was made required")
    added = now._lazy_id_to_field.keys() - then._lazy_id_to_field.keys()
    changed += [
        f"the required column {now._lazy_id_to_field[id].name!r} was added"
        for id in sorted(added)
        if now._lazy_id_to_field[id].required
    ]
    return changed
