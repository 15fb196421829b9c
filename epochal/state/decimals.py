"""What the name of a decimal type says. It needs neither Spark nor Arrow."""

from __future__ import annotations

import re

from epochal.errors import SchemaError

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def decimal_of(name: str) -> tuple[int, int] | None:
    """Precision and scale of ``decimal(p,s)``; ``None`` for any other type."""
    match = _DECIMAL.fullmatch(name)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    if not (1 <= precision <= 38 and scale <= precision):
        raise SchemaError(f"Type {name} is not valid: the precision is 1 to 38 and the scale at most the precision.")
    return precision, scale
