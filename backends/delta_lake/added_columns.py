"""Columns that a Delta table lacks: which of them can be added, and the commit that adds them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError
from deltalake.transaction import CommitProperties, PostCommitHookProperties

from epochal.backends.delta_lake.schema import columns_of, shown_type
from epochal.backends.tables.added_columns import ColumnAddition, check_names
from epochal.backends.tables.commit_protocol import HeadMoved
from epochal.backends.tables.folder import first_line
from epochal.errors import OutcomeUnknown, SchemaError, SinkError

_WITHOUT_ZONE: Final = "timestamp_ntz"


def missing_columns(table: DeltaTable, rows: pa.Schema) -> list[str]:
    """Columns of the rows that the table does not have."""
    existing = columns_of(table.schema())
    return [name for name in rows.names if name not in existing]


def column_addition(
    subject: str, table: DeltaTable, rows: pa.Schema, keys: Collection[str], mark: Mapping[str, Any]
) -> ColumnAddition | None:
    """The columns of the rows that the table lacks; ``None`` if it has all. ``mark``: information about the commit, for
    people. Raises ``SchemaError`` for a column that cannot be added."""
    types = columns_of(rows)
    added = {name: _optional(types[name]) for name in missing_columns(table, rows)}
    if not added:
        return None
    check_names(subject, added, columns_of(table.schema()))
    features = table.protocol().writer_features or ()
    for name, type in added.items():
        if name in keys:
            raise SchemaError(
                f"{subject} cannot add the key {name!r}: rows of the table would have no value for it, and would not "
                "be replaced. Add the column with its values, or write to another table."
            )
        if "timestampNtz" not in features and _has_type(type, _WITHOUT_ZONE):
            raise SchemaError(
                f"{subject} cannot add column {name!r}: it has timestamps without a time zone, which the table's "
                "protocol does not have, and other programs may not read. Cast the column to timestamp, or add it to "
                "the table."
            )
    fields = [{"name": name, "type": type, "nullable": True, "metadata": {}} for name, type in added.items()]
    return ColumnAddition(
        {name: shown_type(type) for name, type in added.items()},
        partial(_commit, subject, table, [Field.from_json(json.dumps(field)) for field in fields], mark),
    )


def _commit(subject: str, table: DeltaTable, fields: Sequence[Field], mark: Mapping[str, Any]) -> None:
    names = ", ".join(field.name for field in fields)
    try:
        table.alter.add_columns(
            list(fields),
            commit_properties=CommitProperties(custom_metadata=dict(mark), max_commit_retries=0),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
        )
    except CommitFailedError as error:
        raise HeadMoved(first_line(error)) from error
    except (DeltaProtocolError, SchemaMismatchError, PermissionError) as error:
        raise SinkError(f"{subject} cannot add the columns {names}: {first_line(error)}.") from error
    except (DeltaError, OSError) as error:
        raise OutcomeUnknown(
            f"{subject}: whether the columns {names} are added is not known yet: {first_line(error)}. The table is "
            "read again at the next attempt, and decides."
        ) from error


def _optional(type: Any) -> Any:
    """The type, whose nested values may be null."""
    if not isinstance(type, dict):
        return type
    match type["type"]:
        case "struct":
            fields = [{**field, "nullable": True, "type": _optional(field["type"])} for field in type["fields"]]
            return {**type, "fields": fields}
        case "array":
            return {**type, "containsNull": True, "elementType": _optional(type["elementType"])}
        case _:
            value = _optional(type["valueType"])
            return {**type, "keyType": _optional(type["keyType"]), "valueContainsNull": True, "valueType": value}


def _has_type(type: Any, name: str) -> bool:
    """Return whether a type is, or contains, the primitive type ``name``."""
    if not isinstance(type, dict):
        return bool(type == name)
    inner = (type.get(part) for part in ("elementType", "keyType", "valueType"))
    return any(_has_type(each, name) for each in (*inner, *(field["type"] for field in type.get("fields", ()))))
