"""Values that stand in a query, with Spark's types."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

from sqlglot import exp

from epochal.standing.expression import Expression, normal
from epochal.standing.parsing import position_of
from epochal.standing.refusals import refused
from epochal.standing.types import FLOATS
from epochal.state.type_names import decimal_of

_INT: Final = 2**31
_BIGINT: Final = 2**63
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)(Z|[+-]\d\d:\d\d)?)?", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def cast(value: Expression, type: str) -> Expression:
    """``value`` as ``type``, which holds it; a literal becomes one of that type."""
    if value.type == type:
        return value
    if value.operation != "literal" or value.value is None:
        return Expression("literal", type) if value.operation == "literal" else normal("cast", type, value)
    if type in FLOATS:
        return Expression("literal", type, value=float(value.value))
    if decimal_of(type) is not None:
        return Expression("literal", type, value=str(value.value))
    if (value.type, type) == ("date", "timestamp"):
        return Expression("literal", type, value=value.value * 86_400_000_000)
    if (value.type, type) == ("timestamp", "date"):
        return Expression("literal", type, value=value.value // 86_400_000_000)
    return Expression("literal", type, value=value.value)


def number(node: exp.Expr, text: str) -> Expression:
    """What a number in a query is, of the type that Spark reads it as. Raises ``QueryRefused``."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise refused("literal", text, at=position_of(node)) from None
    if "e" in text.lower():
        return Expression("literal", "double", value=float(text))
    exponent = number.as_tuple().exponent
    if "." not in text:
        whole = int(text)
        if not -_BIGINT <= whole < _BIGINT:
            raise refused("literal", text, at=position_of(node))
        return Expression("literal", "int" if -_INT <= whole < _INT else "bigint", value=whole)
    scale = -int(exponent)
    precision = max(len(number.as_tuple().digits), scale)
    if precision > 18:
        raise refused("literal", text, at=position_of(node))
    return Expression("literal", f"decimal({precision},{scale})", value=str(number))


def fits(value: int, type: str) -> bool:
    bits: int = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}[type]
    least: int = -(2**bits)
    return least <= value < -least


def time(text: str, type: str) -> Expression:
    """A date or a timestamp, in UTC where it names no zone. Raises ``ValueError``."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None or (type == "date" and found[2] is not None):
        raise ValueError(text)
    day, clock, zone = found[1], found[2] or "00:00", found[3] or "+00:00"
    if type == "date":
        return Expression("literal", "date", value=(date.fromisoformat(day) - date(1970, 1, 1)).days)
    at = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone == 'Z' else zone}")
    return Expression("literal", "timestamp", value=(at - _EPOCH) // timedelta(microseconds=1))
