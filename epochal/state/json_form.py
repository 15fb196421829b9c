"""The one JSON form of each type that state can have, as the HTTP interface and exports use it.

=====================  ======================================================================
type                   JSON
=====================  ======================================================================
boolean                ``true``, ``false``
tinyint .. bigint      number
float, double          number, or ``"NaN"``, ``"Infinity"``, ``"-Infinity"``
decimal(p,s)           string with s digits after the point: ``"12.50"``
string                 string
binary                 string, base64 (RFC 4648, with padding)
date                   string, ``"2013-01-31"``
timestamp              string, UTC, microseconds: ``"2013-01-31T05:15:00.000000Z"``
timestamp_ntz          string without a zone: ``"2013-01-31T05:15:00.000000"``
=====================  ======================================================================

``null`` is null in value columns; a key has no nulls. In a URL path a key is its columns' values in order, separated by
commas, each percent-encoded; a value is written there as in JSON, without quotation marks.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from epochal.errors import InvalidInput, InvalidKey
from epochal.state.table import Column
from epochal.state.types import FLOATING, INTEGER_BITS, decimal_of

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DECIMAL = re.compile(r"-?[0-9]{1,38}(\.[0-9]{1,38})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
_TIME = re.compile(rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[T ]{_CLOCK}(Z|[+-][0-9]{{2}}:[0-9]{{2}})?")
_EXACT = Context(prec=80)

_EXPECTED_FORMS = {
    "boolean": "true or false",
    "float": 'a number, "NaN", "Infinity" or "-Infinity"',
    "double": 'a number, "NaN", "Infinity" or "-Infinity"',
    "string": "a string",
    "binary": "a string of base64",
    "date": 'a date such as "2013-01-31"',
    "timestamp": 'a time with its zone, such as "2013-01-31T05:15:00Z"',
    "timestamp_ntz": 'a time without a zone, such as "2013-01-31T05:15:00"',
}


def to_json(value: Any, type: str) -> Any:
    """The JSON form of a Python value, as Arrow's ``as_py`` gives it."""
    if value is None:
        return None
    if type in FLOATING:
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else _infinity(value)
    if type == "binary":
        return base64.b64encode(value).decode()
    if type == "date":
        return value.isoformat()
    if type == "timestamp":
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if type == "timestamp_ntz":
        return value.isoformat(timespec="microseconds")
    if type.startswith("decimal"):
        return f"{value:f}"
    return value


def from_json(value: Any, column: Column) -> Any:
    """The Python value of a JSON form; ``None`` for null. Raises ``InvalidInput`` naming column, expected and got."""
    return None if value is None else _parse(value, column, InvalidInput)


def key_from_json(value: dict[str, Any], columns: Sequence[Column]) -> tuple[Any, ...]:
    """A key from its object by column name. Raises ``InvalidKey``: missing, unknown and null columns, wrong types."""
    names = [column.name for column in columns]
    missing = [name for name in names if value.get(name) is None]
    unknown = [name for name in value if name not in names]
    if missing or unknown:
        said = [f"{', '.join(missing)} missing"] if missing else []
        said += [f"{', '.join(map(str, unknown))} unknown"] if unknown else []
        raise InvalidKey(f"The key must have exactly the columns {', '.join(names)}, without nulls: {'; '.join(said)}.")
    return tuple(_parse(value[column.name], column, InvalidKey) for column in columns)


def key_from_path(path: str, columns: Sequence[Column]) -> tuple[Any, ...]:
    """A key from its still percent-encoded form in a URL path (``JFK,LAX``). Raises ``InvalidKey``."""
    segments = path.split(",")
    if len(segments) != len(columns):
        names = ",".join(f"{{{column.name}}}" for column in columns)
        raise InvalidKey(
            f"The key {path!r} has {len(segments)} values, but its columns are {names}. "
            "Separate values with commas; write a comma inside a value as %2C."
        )
    try:
        texts = [unquote_to_bytes(segment).decode() for segment in segments]
    except UnicodeDecodeError:
        raise InvalidKey(f"The key {path!r} is not percent-encoded UTF-8.") from None
    return tuple(from_text(text, column) for text, column in zip(texts, columns, strict=True))


def key_to_path(key: Sequence[Any], columns: Sequence[Column]) -> str:
    """The inverse of :func:`key_from_path`."""
    return ",".join(quote(_text(value, column.type), safe="") for value, column in zip(key, columns, strict=True))


def from_text(text: str, column: Column) -> Any:
    """One value of a key in a URL path, no longer percent-encoded. Raises ``InvalidKey``."""
    if column.type == "boolean" and text in ("true", "false"):
        return text == "true"
    if column.type in INTEGER_BITS and _INTEGER.fullmatch(text):
        return _parse(int(text), column, InvalidKey)
    if column.type in FLOATING and _NUMBER.fullmatch(text):
        return float(text)
    return _parse(text, column, InvalidKey)


def _text(value: Any, type: str) -> str:
    form = to_json(value, type)
    return form if isinstance(form, str) else str(form).lower()


def _infinity(value: float) -> str:
    return "Infinity" if value > 0 else "-Infinity"


def _parse(value: Any, column: Column, error: type[InvalidInput]) -> Any:
    try:
        return _value(value, column.type)
    except (ValueError, TypeError, OverflowError, InvalidOperation):
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + ".."
        raise error(
            f"Column {column.name!r} ({column.type}) takes {_expected_form(column.type)}, not {shown}."
        ) from None


def _expected_form(type: str) -> str:
    if type in INTEGER_BITS:
        bound = 2 ** (INTEGER_BITS[type] - 1)
        return f"an integer from {-bound} to {bound - 1}"
    if type in _EXPECTED_FORMS:
        return _EXPECTED_FORMS[type]
    precision, scale = decimal_of(type) or (0, 0)
    return f"a string of at most {precision - scale} digits before and {scale} after the point"


def _value(value: Any, type: str) -> Any:
    if type == "boolean":
        return _checked(value, isinstance(value, bool))
    if type in INTEGER_BITS:
        bound = 2 ** (INTEGER_BITS[type] - 1)
        return _checked(value, isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound)
    if type in FLOATING:
        return _floating(value)
    if not isinstance(value, str):
        raise TypeError
    if type == "string":
        value.encode()  # a lone surrogate is no text
        return value
    if type == "binary":
        return _base64(value)
    if type == "date":
        _checked(value, _DATE.fullmatch(value))
        return date.fromisoformat(value)
    if type == "timestamp":
        return _time(value, zoned=True).astimezone(UTC)
    if type == "timestamp_ntz":
        return _time(value, zoned=False)
    return _decimal(value, type)


def _checked(value: Any, valid: object) -> Any:
    if not valid:
        raise ValueError
    return value


def _floating(value: Any) -> float:
    if isinstance(value, str):
        _checked(value, value in _SPECIAL)
        return _SPECIAL[value]
    return float(_checked(value, isinstance(value, int | float) and not isinstance(value, bool)))


def _base64(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as wrong:
        raise ValueError from wrong


def _time(value: str, zoned: bool) -> datetime:
    match = _TIME.fullmatch(value)
    _checked(value, match is not None and (match[1] is not None) == zoned)
    return datetime.fromisoformat(value)


def _decimal(value: str, type: str) -> Any:
    precision, scale = decimal_of(type) or (0, 0)
    _checked(value, _DECIMAL.fullmatch(value))
    number = Decimal(value)
    exact = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    fits = exact == 0 or len(exact.as_tuple().digits) <= precision
    return _checked(exact, fits and exact == number)
