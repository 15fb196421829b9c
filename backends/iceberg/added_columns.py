"""Columns that an Iceberg table lacks: the schema with them, and the commit that adds them.

The library stages the new schema; it is passed to the catalog once, as commits of rows are. Besides the current schema,
which the library requires, the commit requires the last number of a column that the table has assigned. Otherwise a
late commit could give a new column the number of one that others have added and dropped meanwhile, whose values are
still in the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AssertLastAssignedFieldId, AssertTableUUID
from pyiceberg.table.update.schema import UpdateSchema

from epochal.backends.iceberg.schema import new_schema
from epochal.backends.tables.added_columns import check_names
from epochal.errors import SchemaError


@dataclass(frozen=True)
class StagedColumns:
    """``columns``: types of the added columns by name; ``schema``: the columns of the table with them; ``updates``,
    ``requirements``: of the commit, as the catalog takes them."""

    columns: dict[str, str]
    schema: Schema
    updates: tuple[Any, ...]
    requirements: tuple[Any, ...]


def missing_columns(table: Table, rows: pa.Schema) -> list[str]:
    """Columns of the rows that the table does not have."""
    existing = {field.name for field in table.schema().fields}
    return [name for name in rows.names if name not in existing]


def staged_columns(subject: str, table: Table, rows: pa.Schema) -> StagedColumns | None:
    """The columns of the rows that the table lacks; ``None`` if it has all. Raises ``SchemaError`` for a column that
    cannot be added."""
    missing = missing_columns(table, rows)
    if not missing:
        return None
    check_names(subject, missing, [field.name for field in table.schema().fields])
    added = new_schema(subject, pa.schema([_optional(rows.field(name)) for name in missing]))
    metadata = table.metadata
    update = UpdateSchema(table.transaction(), name_mapping=metadata.name_mapping())
    try:
        for field in added.fields:
            update.add_column((field.name,), field.field_type)
        schema = update._apply()
        schema.check_format_version_compatibility(metadata.format_version)
        updates, requirements = update._commit()
    except Exception as error:  # the library raises several classes, among them the root class
        raise SchemaError(
            f"{subject} cannot add the columns {', '.join(missing)}: {' '.join(str(error).split())}. Change the "
            "columns with select or with_columns, or change the table."
        ) from error
    same_table = AssertTableUUID(uuid=metadata.table_uuid)
    same_numbers = AssertLastAssignedFieldId(last_assigned_field_id=metadata.last_column_id)
    return StagedColumns(
        {field.name: str(field.field_type) for field in added.fields},
        schema,
        updates,
        (*requirements, same_numbers, same_table),
    )


def _optional(field: pa.Field) -> pa.Field:
    """The column, which may be null, as may its nested values."""
    return field.with_type(_optional_type(field.type)).with_nullable(True)


def _optional_type(type: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type):
        return pa.struct([_optional(field) for field in type])
    if pa.types.is_large_list(type):
        return pa.large_list(_optional(type.value_field))
    if pa.types.is_list(type):
        return pa.list_(_optional(type.value_field))
    if pa.types.is_map(type):
        return pa.map_(type.key_field, _optional(type.item_field))
    return type
