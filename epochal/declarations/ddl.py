"""Parser of column lists (``"streak int, since timestamp"``) that needs no JVM.

It supports the types that state can have (:mod:`epochal.state.types`). Spark parses the schemas of sources and of the
output of operators.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from epochal.errors import InvalidInput, SchemaError
from epochal.state.json_form import from_text, to_json
from epochal.state.table import Column
from epochal.state.type_names import (
    array_name,
    map_name,
    split_outside_brackets,
    struct_name,
    type_name,
    unquoted,
)
from epochal.state.types import arrow_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_UNIT = "(?:year|month|day|hour|minute|second)"
_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))\s*[:\s]\s*"
    rf"(?P<type>interval(?:\s+{_UNIT}(?:\s+to\s+{_UNIT})?)?|[^\W\d]\w*(?:\s*[(<].*[)>])?)"
    r"(?:\s+NOT\s+NULL)?(?:\s+DEFAULT\s+(?P<default>'[^']*'|\"[^\"]*\"|[^\s'\"]+))?"
    r"(?:\s+COMMENT\s+(?:'[^']*'|\"[^\"]*\"))?\s*",
    re.IGNORECASE | re.DOTALL,
)
_NESTED = re.compile(r"(array|map|struct)\s*<(.*)>", re.IGNORECASE | re.DOTALL)
_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}


def parse_columns(where: str, schema: str | StructType) -> tuple[Column, ...]:
    """The columns of the schema of a state. ``where``: its name in messages. Raises ``SchemaError`` with the fix."""
    columns = _from_text(where, schema) if isinstance(schema, str) else _from_struct(where, schema)
    if not columns:
        raise SchemaError(f"{where} has no columns: write 'name type, ..', such as 'streak int, since timestamp'.")
    seen: set[str] = set()
    for column in columns:
        if column.name.casefold() in seen:
            raise SchemaError(f"{where} has two columns named {column.name!r}: rename one.")
        if column.name.startswith("_"):
            raise SchemaError(
                f"{where} has a column {column.name!r}: names that start with '_' are reserved. Rename it."
            )
        seen.add(column.name.casefold())
        try:
            arrow_type(column.type)
        except SchemaError as error:
            raise SchemaError(f"{where}, column {column.name!r}: {error.message}") from None
    return columns


def normal_type(text: str) -> str:
    """The name of a type in :mod:`epochal.state.type_names`: ``LONG`` -> ``bigint``, ``dec( 10 )`` ->
    ``decimal(10,0)``.

    Raises ``SchemaError`` for a malformed nested type.
    """
    nested = _NESTED.fullmatch(text.strip())
    if nested is not None:
        return _normal_nested(nested[1].lower(), split_outside_brackets(nested[2]), text)
    if text.strip().lower().startswith("interval"):
        return " ".join(text.lower().split())
    name, bracket, rest = re.sub(r"\s+", "", text).lower().partition("(")
    name = _ALIASES.get(name, name)
    if name == "decimal":
        precision, _, scale = rest.removesuffix(")").partition(",")
        return f"decimal({precision or 10},{scale or 0})"
    return name + bracket + rest


def _normal_nested(kind: str, parts: list[str], text: str) -> str:
    if kind == "struct":
        fields = [_COLUMN.fullmatch(part) for part in parts]
        if all(field is not None and field["default"] is None for field in fields):
            return struct_name([(_name(field), normal_type(field["type"])) for field in fields if field is not None])
    elif kind == "array" and len(parts) == 1 and parts[0].strip():
        return array_name(normal_type(parts[0]))
    elif kind == "map" and len(parts) == 2 and all(part.strip() for part in parts):
        return map_name(normal_type(parts[0]), normal_type(parts[1]))
    raise SchemaError(
        f"{text.strip()!r} is not a type: write array<element>, map<key, value> or struct<field: type, ..>."
    )


def _name(match: re.Match[str]) -> str:
    return match["plain"] or unquoted(match["quoted"])


def _from_text(where: str, text: str) -> tuple[Column, ...]:
    return tuple(_column(where, part) for part in split_outside_brackets(text) if part.strip())


def _column(where: str, text: str) -> Column:
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise SchemaError(f"{where}: {text.strip()!r} is not a column: write 'name type', such as 'since timestamp'.")
    name = _name(match)
    try:
        column = Column(name=name, type=normal_type(match["type"]))
    except SchemaError as error:
        raise SchemaError(f"{where}, column {name!r}: {error.message}") from None
    return column if match["default"] is None else _with_default(where, column, match["default"])


def _with_default(where: str, column: Column, literal: str) -> Column:
    """The column with a default, a SQL literal: ``0``, ``true``, ``'none'``, ``'2013-01-31'``, ``null``."""
    if literal.lower() == "null":
        return column
    text = literal[1:-1] if literal[0] in "'\"" else literal.lower()
    try:
        value = from_text(text, column)
    except (InvalidInput, SchemaError) as error:
        raise SchemaError(
            f"{where}: {literal} cannot be the default of column {column.name!r}. {error.message}"
        ) from None
    return column.model_copy(update={"default": to_json(value, column.type)})


def _from_struct(where: str, schema: Any) -> tuple[Column, ...]:
    fields = getattr(schema, "fields", None)
    if fields is None:
        found = type(schema).__name__
        raise SchemaError(f"{where}: the schema is {found}; use text such as 'streak int', or a StructType.")
    return tuple(Column(name=field.name, type=type_name(field.dataType)) for field in fields)
