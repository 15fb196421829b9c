"""Single Python values as the integers that Arrow stores for them, and back: for look-ups of one key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from epochal.errors import InvalidKey

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH = _EPOCH.replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_EXACT = Context(prec=40)


def integer_of(type: pa.DataType) -> Callable[[Any], int]:
    """From a Python value to the integer of an integer, date or time column."""
    if pa.types.is_date32(type):
        return _days
    if pa.types.is_timestamp(type):
        return _local_microseconds if type.tz is None else _microseconds
    return int


def value_of(type: pa.DataType) -> Callable[[Any], Any]:
    """From what ``struct`` unpacks of a fixed-width column to its Python value."""
    if pa.types.is_date32(type):
        return lambda days: date.fromordinal(days + _FIRST_DAY)
    if pa.types.is_timestamp(type):
        start = _LOCAL_EPOCH if type.tz is None else _EPOCH
        return lambda microseconds: start + timedelta(microseconds=microseconds)
    if pa.types.is_duration(type):
        return lambda microseconds: timedelta(microseconds=microseconds)
    if pa.types.is_decimal128(type):
        scale = type.scale
        return lambda data: Decimal(int.from_bytes(data, "little", signed=True)).scaleb(-scale, _EXACT)
    return lambda value: value


def unscaled(value: Decimal, scale: int) -> int:
    """The decimal times ``10 ** scale``. Raises ``InvalidKey`` when that is no integer."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent < -scale:
        raise InvalidKey(f"The decimal {value} has more than {scale} digits after the point.")
    magnitude: int = int("".join(map(str, digits)) or "0") * 10 ** (exponent + scale)
    return -magnitude if sign else magnitude


def _days(value: date) -> int:
    return value.toordinal() - _FIRST_DAY


def _microseconds(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND


def _local_microseconds(value: datetime) -> int:
    return (value - _LOCAL_EPOCH) // _MICROSECOND
