"""Parsing and formatting of Spark's type names: ``array<struct<a:int,b:map<string,date>>>``.

The spelling is that of ``DataType.simpleString``, except that ambiguous field names are quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from epochal.errors import SchemaError

_NESTED = re.compile(r"(array|map|struct)<(.*)>", re.DOTALL)
_FIELD = re.compile(r"(?:`((?:[^`]|``)*)`|([^`:]*)):(.*)", re.DOTALL)
_PLAIN = re.compile(r"\w+")

_OPENING, _CLOSING = "(<", ")>"


@dataclass(frozen=True)
class NestedType:
    """One layer of a nested type. ``types``: an array's element; a map's key and value; a struct's fields."""

    kind: Literal["array", "map", "struct"]
    types: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Names of a struct's fields."""


@cache
def nested_type(name: str) -> NestedType | None:
    """The outermost layer of a nested type; ``None`` for any other type and for a malformed name."""
    match = _NESTED.fullmatch(name)
    if match is None:
        return None
    parts = split_outside_brackets(match[2])
    if match[1] == "array" and len(parts) == 1 and parts[0]:
        return NestedType("array", (parts[0],))
    if match[1] == "map" and len(parts) == 2 and all(parts):
        return NestedType("map", (parts[0], parts[1]))
    fields = [_FIELD.fullmatch(part) for part in parts]
    if match[1] != "struct" or not all(fields):
        return None
    names = tuple(unquoted(field[1]) if field[1] is not None else field[2] for field in fields if field)
    return NestedType("struct", tuple(field[3] for field in fields if field), names)


def array_name(element: str) -> str:
    return f"array<{element}>"


def map_name(key: str, value: str) -> str:
    return f"map<{key},{value}>"


def struct_name(fields: list[tuple[str, str]]) -> str:
    return f"struct<{','.join(f'{_field_name(name)}:{type}' for name, type in fields)}>"


def type_name(type: Any) -> str:
    """The name of a ``pyspark.sql.types.DataType``."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match type:
        case ArrayType():
            return array_name(type_name(type.elementType))
        case MapType():
            return map_name(type_name(type.keyType), type_name(type.valueType))
        case StructType():
            return struct_name([(field.name, type_name(field.dataType)) for field in type.fields])
        case _:
            return str(type.simpleString())


def split_outside_brackets(text: str) -> list[str]:
    """Split at the commas outside brackets and quotation marks."""
    parts, depth, quote, part = [], 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "`'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(part)
            part = ""
            continue
        part += character
    return [*parts, part]


def quoted(name: str) -> str:
    """A name in backticks, with any characters, as Spark parses it."""
    return "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> str:
    """The name denoted by the text between the backticks of a quoted name."""
    return name.replace("``", "`")


def _field_name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quoted(name)


_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")

KeyText = Callable[[int], str]
"""Returns the key of a row for messages; called only after a computation has failed."""


class BeyondType(OverflowError):
    """A number that does not fit into its type. ``type``: the Spark name of the type."""

    def __init__(self, what: str, type: str) -> None:
        super().__init__(f"{what} does not fit into {type}")
        self.type = type

    def __reduce__(self) -> tuple[type[BeyondType], tuple[str, str]]:
        return BeyondType, (str(self).removesuffix(f" does not fit into {self.type}"), self.type)


def is_number(type: str) -> bool:
    return type in _INTEGERS or decimal_of(type) is not None


def wider_argument(type: str | None) -> str:
    """Remedy for an aggregate that overflows ``type``, as a sentence; ``None``: the type is unknown."""
    decimal = None if type is None else decimal_of(type)
    if type in _INTEGERS:
        return "Cast the argument to decimal(38,0), or to double, which is not exact."
    if decimal is None:
        return "Cast the argument to a decimal with more digits, or to double, which is not exact."
    precision, scale = decimal
    if precision < 38:
        return f"Cast the argument to decimal(38,{scale}), or to double, which is not exact."
    return (
        f"Spark has no decimal with more digits than {type}: aggregate the argument divided by a constant, or cast it "
        "to double, which is not exact."
    )


def decimal_of(name: str) -> tuple[int, int] | None:
    """Precision and scale of ``decimal(p,s)``; ``None`` for any other type."""
    match = _DECIMAL.fullmatch(name)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    if not (1 <= precision <= 38 and scale <= precision):
        raise SchemaError(f"Type {name} is not valid: the precision is 1 to 38 and the scale at most the precision.")
    return precision, scale
