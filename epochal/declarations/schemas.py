"""Schemas of DataFrames for operators and sinks: key columns, reserved names, types that Python can receive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from epochal.declarations.names import require_columns
from epochal.errors import PipelineError, SchemaError
from epochal.state.table import Column
from epochal.state.type_names import nested_type, type_name
from epochal.state.types import is_key_type, key_fix, unheld_fix

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

RESERVED = frozenset(
    {"_mark", "_subtask", "_kg", "_op", "_handle", "_index", "_malformed", "_input", "_group", "_side"}
)
"""Names of columns that the engine adds. Columns of authors cannot have these names."""


def key_columns(operator: str, keys: tuple[str, ...], schema: StructType) -> tuple[Column, ...]:
    """The key columns of an operator, with types. Raises ``PipelineError`` that names operator, column and fix."""
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
    """Check the names of the input columns. Raises ``PipelineError`` that names operator, column and fix."""
    where = f"Operator {operator!r}"
    seen: set[str] = set()
    for name in schema.names:
        if name.casefold() in RESERVED:
            raise PipelineError(f"{where}: its input has a column {name!r}, a reserved name. Rename it.")
        if name.casefold() in seen:
            raise PipelineError(f"{where}: its input has two columns named {name!r}. Rename or drop one.")
        seen.add(name.casefold())


if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def carried_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a DataFrame's rows in Python. Raises ``SchemaError`` that names column, type and fix."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

    for field in schema.fields:
        try:
            to_arrow_type(field.dataType, timezone="UTC")
        except PySparkException:
            type = type_name(field.dataType)
            fix = _fix(type) or "cast it to string"
            raise SchemaError(
                f"column {field.name!r} is {type}, which Spark cannot pass to Python. Drop it, or {fix}."
            ) from None
    return to_arrow_schema(schema, timezone="UTC")


def _fix(type: str) -> str | None:
    """The fix for the first unsupported part of a nested type."""
    nested = nested_type(type)
    if nested is None:
        return unheld_fix(type)
    return next((fix for inner in nested.types if (fix := _fix(inner)) is not None), None)
