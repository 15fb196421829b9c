"""The types of values in standing queries, by Spark's names, and the common type in which Spark (ANSI) compares two."""

from __future__ import annotations

from typing import Final

from epochal.state.type_names import decimal_of

INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
FLOATS: Final = ("float", "double")
GREATEST_PRECISION: Final = 18
"""The maximum precision of decimals, which fit into 64 bits."""
_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_WIDEST: Final = 38


def is_integer(type: str) -> bool:
    return type in INTEGERS


def is_number(type: str) -> bool:
    return type in INTEGERS or type in FLOATS or decimal_of(type) is not None


def is_readable(type: str) -> bool:
    """True if a query may use the values of a column of this type."""
    if (decimal := decimal_of(type)) is not None:
        return decimal[0] <= GREATEST_PRECISION
    return is_number(type) or type in ("boolean", "string", "date", "timestamp")


def is_groupable(type: str) -> bool:
    """True if rows can be grouped by it: the group is shown as JSON, which has no NaN."""
    return is_readable(type) and type not in FLOATS


def common_type(one: str, other: str) -> str | None:
    """The type in which Spark compares values of both types, or the type of a choice between them; ``None`` if there is
    none, or only with a cast that can fail."""
    if one == other:
        return one
    if "void" in (one, other):
        return other if one == "void" else one
    if {one, other} == {"date", "timestamp"}:
        return "timestamp"
    if not (is_number(one) and is_number(other)):
        return None
    if one in FLOATS or other in FLOATS:
        return "double"
    if is_integer(one) and is_integer(other):
        return max(one, other, key=INTEGERS.index)
    (whole, scale), (other_whole, other_scale) = _parts(one), _parts(other)
    scale = max(scale, other_scale)
    precision = max(whole, other_whole) + scale
    return f"decimal({precision},{scale})" if precision <= _WIDEST else None


def sum_type(type: str) -> str:
    """Spark's type of ``sum`` over values of a type."""
    if (decimal := decimal_of(type)) is not None:
        return f"decimal({min(decimal[0] + 10, _WIDEST)},{decimal[1]})"
    return "bigint" if is_integer(type) else "double"


def average_type(type: str) -> str:
    """Spark's type of ``avg`` over values of a type."""
    if (decimal := decimal_of(type)) is not None:
        return f"decimal({min(decimal[0] + 4, _WIDEST)},{min(decimal[1] + 4, _WIDEST)})"
    return "double"


def _parts(type: str) -> tuple[int, int]:
    """The digits before and after the decimal point."""
    if (decimal := decimal_of(type)) is not None:
        return decimal[0] - decimal[1], decimal[1]
    return _DIGITS[type], 0
