"""Displayed values of aggregates whose stored form differs: a deviation from sums of squares, a count from a sketch.

Look-ups, histories and ``read_state`` use the same functions. Columns are Arrow arrays; the result has the displayed
type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.state.lists import lengths, totals
from epochal.state.type_names import BeyondType, decimal_of, nested_type
from epochal.state.types import arrow_type

AnyArray: TypeAlias = Any
"""``pyarrow.Array`` or ``ChunkedArray``."""
Options: TypeAlias = Mapping[str, Any]
Function: TypeAlias = Callable[[Sequence[AnyArray], str, Options], AnyArray]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _same(columns: Sequence[AnyArray], type: str, options: Options) -> AnyArray:
    return columns[0]


def _size(columns: Sequence[AnyArray], type: str, options: Options) -> AnyArray:
    return pa.array(lengths(columns[0]), arrow_type(type))


def _total(columns: Sequence[AnyArray], type: str, options: Options) -> AnyArray:
    return totals(columns[0], type)


def _spread(columns: Sequence[AnyArray], type: str, options: Options) -> AnyArray:
    """Variance or covariance from a count and a sum of squares or products.

    ``sample``: divide by the count minus one; ``root``: return the square root.
    """
    count, squares = columns
    degrees = pc.subtract(count, 1 if options["sample"] else 0)
    degrees = pc.if_else(pc.greater(degrees, 0), degrees, pa.scalar(None, pa.int64())).cast(pa.float64())
    value = pc.divide(squares, degrees)
    return pc.sqrt(value) if options["root"] else value


def _correlation(columns: Sequence[AnyArray], type: str, options: Options) -> AnyArray:
    count, products, squares_x, squares_y = columns
    scale = pc.multiply(pc.sqrt(squares_x), pc.sqrt(squares_y))
    known = pc.and_(pc.greater(count, 1), pc.not_equal(scale, 0.0))
    return pc.if_else(known, pc.divide(products, scale), pa.scalar(None, pa.float64()))


def _distinct(columns: Sequence[AnyArray], type: str, options: Options) -> AnyArray:
    from datasketches import hll_sketch  # Most look-ups involve no sketches.

    def estimate(sketch: bytes | None) -> int:
        return 0 if sketch is None else int(np.floor(hll_sketch.deserialize(sketch).get_estimate() + 0.5))

    return pa.array([estimate(sketch) for sketch in columns[0].to_pylist()], arrow_type(type))


def _percentiles(columns: Sequence[AnyArray], type: str, options: Options) -> AnyArray:
    from datasketches import kll_doubles_sketch

    nested = nested_type(type)
    convert = _from_double(nested.types[0] if nested else type)

    def quantiles(serialised: bytes | None) -> Any:
        sketch = None if serialised is None else kll_doubles_sketch.deserialize(serialised)
        if sketch is None or sketch.is_empty():
            return None
        found = [convert(_quantile(sketch, share)) for share in options["percentages"]]
        return found if nested else found[0]

    return pa.array([quantiles(sketch) for sketch in columns[0].to_pylist()], arrow_type(type))


def _quantile(sketch: Any, share: float) -> float:
    """A quantile as in Spark's library: minimum and maximum are exact, independent of the sketch's samples."""
    if 0 < share < 1:
        return float(sketch.get_quantile(share, True))
    return float(sketch.get_max_value() if share else sketch.get_min_value())


def _from_double(type: str) -> Callable[[float], Any]:
    """Conversion of a sketch's doubles to values of a type, as in Spark."""
    decimal = decimal_of(type)
    if decimal is not None:
        unit = Decimal(1).scaleb(-decimal[1])
        return lambda value: Decimal(repr(value)).quantize(unit)
    if type == "date":
        return lambda value: date(1970, 1, 1) + timedelta(days=int(value))
    if type == "timestamp":
        return lambda value: _EPOCH + timedelta(microseconds=int(value))
    if type in ("float", "double"):
        return lambda value: value
    return lambda value: min(int(value), 2**63 - 1)


FUNCTIONS: dict[str, Function] = {
    "same": _same,
    "size": _size,
    "total": _total,
    "spread": _spread,
    "correlation": _correlation,
    "distinct": _distinct,
    "percentiles": _percentiles,
}

COUNT_PRECISION = 20
"""Spark divides by the count as ``decimal(20,0)``."""
_EXACT = Context(prec=120, rounding=ROUND_HALF_UP)


def average_type(argument: str) -> str:
    """Spark's type of ``avg`` over ``argument``: ``decimal(10,2)`` -> ``decimal(14,6)``, others -> ``double``."""
    decimal = decimal_of(argument)
    if decimal is None:
        return "double"
    precision, scale = decimal
    return f"decimal({min(precision + 4, 38)},{min(scale + 4, 38)})"


def quotients(dividend: AnyArray, divisor: AnyArray, type: str) -> AnyArray:
    """``dividend / divisor`` per row, as ``type``; null where the divisor is 0 or either operand is null.

    Raises ``OverflowError`` if a quotient does not fit into ``type``.
    """
    decimal = decimal_of(type)
    divisor = pc.if_else(pc.equal(divisor, 0), pa.scalar(None, divisor.type), divisor)
    if decimal is None:
        return pc.divide(dividend.cast(pa.float64()), divisor.cast(pa.float64()))
    # Arrow truncates quotients to 76 digits; rounding half up needs only one digit beyond the scale.
    wide = pa.decimal256(dividend.type.precision, dividend.type.scale)
    exact = pc.divide(dividend.cast(wide), divisor.cast(pa.decimal256(COUNT_PRECISION, 0)))
    try:
        return pc.round(exact, decimal[1], "half_towards_infinity").cast(arrow_type(type))
    except pa.ArrowInvalid as error:
        raise BeyondType("the average", type) from error


def quotient(dividend: Any, divisor: int | None, type: str) -> Any:
    """Like :func:`quotients`, for two Python values."""
    if dividend is None or not divisor:
        return None
    decimal = decimal_of(type)
    if decimal is None:
        return (float(dividend) if isinstance(dividend, Decimal) else dividend) / divisor
    exact = _EXACT.divide(Decimal(dividend), Decimal(divisor))
    return exact.quantize(Decimal(1).scaleb(-decimal[1]), context=_EXACT)
