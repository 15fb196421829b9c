"""The key columns of an operator, taken from its input's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.declarations.names import require_columns
from epochal.errors import PipelineError
from epochal.state.table import Column
from epochal.state.type_names import type_name
from epochal.state.types import is_key_type, key_fix

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

RESERVED = frozenset(
    {"_mark", "_subtask", "_kg", "_op", "_handle", "_index", "_malformed", "_input", "_group", "_side"}
)
"""Columns that the engine adds on the way; no column of an author may have one of these names."""


def key_columns(operator: str, keys: tuple[str, ...], schema: StructType) -> tuple[Column, ...]:
    """The operator's key columns with their types. Raises ``PipelineError`` naming operator, column and fix."""
    where = f"Operator {operator!r}"
    try:
        require_columns(keys, schema.names)
    except PipelineError as error:
        raise PipelineError(f"{where}, key: {error.message}") from None
    types = {field.name.casefold(): type_name(field.dataType) for field in schema}
    columns = tuple(Column(name=name, type=types[name.casefold()]) for name in keys)
    for column in columns:
        if not is_key_type(column.type):
            raise PipelineError(
                f"{where}: {column.name!r} is {column.type} and cannot be a key. {key_fix(column.type)}"
            )
    check_input_names(operator, schema)
    return columns


def check_input_names(operator: str, schema: StructType) -> None:
    """Can an operator read columns of these names? Raises ``PipelineError`` naming operator, column and fix."""
    where = f"Operator {operator!r}"
    seen: set[str] = set()
    for name in schema.names:
        if name.casefold() in RESERVED:
            raise PipelineError(f"{where}: its input has a column {name!r}, a name that Epochal uses. Rename it.")
        if name.casefold() in seen:
            raise PipelineError(f"{where}: its input has two columns named {name!r}. Rename or drop one.")
        seen.add(name.casefold())
