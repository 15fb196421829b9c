"""What Spark hands to Python and takes back as Arrow: the columns that operators in Python and sinks can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from epochal.errors import SchemaError
from epochal.state.type_names import nested_type, type_name
from epochal.state.types import unheld_fix

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def carried_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a DataFrame's rows in Python. Raises ``SchemaError`` naming column, type and fix."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

    for field in schema.fields:
        try:
            to_arrow_type(field.dataType, timezone="UTC")
        except PySparkException:
            type = type_name(field.dataType)
            fix = _fix(type) or "cast it to string"
            raise SchemaError(
                f"column {field.name!r} is {type}, which Spark cannot hand to Python. Drop it, or {fix}."
            ) from None
    return to_arrow_schema(schema, timezone="UTC")


def _fix(type: str) -> str | None:
    """Of the first part of a nested type that is known to be the matter."""
    nested = nested_type(type)
    if nested is None:
        return unheld_fix(type)
    return next((fix for inner in nested.types if (fix := _fix(inner)) is not None), None)
