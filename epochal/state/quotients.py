"""Averages from what is kept of them, sum and count, as Spark computes them: for output, look-ups and readers alike."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from epochal.state.decimals import BeyondType, decimal_of
from epochal.state.types import arrow_type

AnyArray: TypeAlias = Any
"""``pyarrow.Array`` or ``ChunkedArray``."""

COUNT_PRECISION = 20
"""Spark divides by the count as ``decimal(20,0)``."""
_EXACT = Context(prec=120, rounding=ROUND_HALF_UP)


def average_type(argument: str) -> str:
    """The Spark type of ``avg`` over ``argument``: ``decimal(10,2)`` -> ``decimal(14,6)``, a number -> ``double``."""
    decimal = decimal_of(argument)
    if decimal is None:
        return "double"
    precision, scale = decimal
    return f"decimal({min(precision + 4, 38)},{min(scale + 4, 38)})"


def quotients(dividend: AnyArray, divisor: AnyArray, type: str) -> AnyArray:
    """``dividend / divisor`` per row, as ``type``; null where the divisor is 0 or one of them is null.

    Raises ``OverflowError`` when a quotient does not fit into ``type``.
    """
    decimal = decimal_of(type)
    divisor = pc.if_else(pc.equal(divisor, 0), pa.scalar(None, divisor.type), divisor)
    if decimal is None:
        return pc.divide(dividend.cast(pa.float64()), divisor.cast(pa.float64()))
    # Arrow keeps all digits of a quotient that 76 can hold, and cuts off the others; half up needs the next one only.
    wide = pa.decimal256(dividend.type.precision, dividend.type.scale)
    exact = pc.divide(dividend.cast(wide), divisor.cast(pa.decimal256(COUNT_PRECISION, 0)))
    try:
        return pc.round(exact, decimal[1], "half_towards_infinity").cast(arrow_type(type))
    except pa.ArrowInvalid as error:
        raise BeyondType("the average", type) from error


def quotient(dividend: Any, divisor: int | None, type: str) -> Any:
    """As :func:`quotients`, of two Python values."""
    if dividend is None or not divisor:
        return None
    decimal = decimal_of(type)
    if decimal is None:
        return (float(dividend) if isinstance(dividend, Decimal) else dividend) / divisor
    exact = _EXACT.divide(Decimal(dividend), Decimal(divisor))
    return exact.quantize(Decimal(1).scaleb(-decimal[1]), context=_EXACT)
