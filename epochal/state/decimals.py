"""What the name of a decimal type says. It needs neither Spark nor Arrow."""

from __future__ import annotations

import re
from collections.abc import Callable

from epochal.errors import SchemaError

_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")

KeyText = Callable[[int], str]
"""The key of a row as messages show it; called only when a computation has failed."""


class BeyondType(OverflowError):
    """A number that does not fit into its type. ``type`` is Spark's name of it."""

    def __init__(self, what: str, type: str) -> None:
        super().__init__(f"{what} does not fit into {type}")
        self.type = type

    def __reduce__(self) -> tuple[type[BeyondType], tuple[str, str]]:
        return BeyondType, (str(self).removesuffix(f" does not fit into {self.type}"), self.type)


def is_number(type: str) -> bool:
    return type in _INTEGERS or decimal_of(type) is not None


def wider_argument(type: str | None) -> str:
    """What to do about an aggregate that leaves ``type``, as a sentence; ``None``: the type is not known."""
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
