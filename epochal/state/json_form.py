"""JSON form of each type of state, for the HTTP interface and exports.

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
interval of days to    string, ISO 8601, always with every part: ``"P1DT2H3M4.500000S"``; a minus
seconds                precedes a negative interval
array                  array
map                    object; its names are the keys as in a URL path: ``{"2013-01-31": 7}``
struct                 object, with every field
variant                string, the JSON text that ``to_json`` returns, so that no digit is lost
=====================  ======================================================================

``null`` is null: in value columns, in nested values, and in an operator's key columns. In a URL path a key consists of
its columns' values in order, separated by commas, each percent-encoded. A value in a path is written as in JSON without
quotation marks, and null is ``%00``. A string of one zero character therefore cannot be written in a path.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from epochal.errors import InvalidInput, InvalidKey
from epochal.state.table import Column
from epochal.state.type_names import NestedType, decimal_of, nested_type
from epochal.state.types import DAY_TIME_INTERVALS, FLOATING, INTEGER_BITS, VARIANT

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DECIMAL = re.compile(r"-?[0-9]{1,38}(\.[0-9]{1,38})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
_TIME = re.compile(rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[T ]{_CLOCK}(Z|[+-][0-9]{{2}}:[0-9]{{2}})?")
_DURATION = re.compile(
    r"(-?)P(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,12})H)?(?:(\d{1,14})M)?(?:(\d{1,16})(?:\.(\d{1,6}))?S)?)?"
)
_MICROSECOND = timedelta(microseconds=1)
NULL_TEXT = "\0"
"""Percent-decoded form of null in a URL path."""
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
    VARIANT: "a string of JSON",
    **dict.fromkeys(DAY_TIME_INTERVALS, 'a duration such as "P1DT2H3M4.5S"'),
}


def to_json(value: Any, type: str) -> Any:
    """The JSON form of a Python value as returned by Arrow's ``as_py``: a map as pairs, a variant as bytes."""
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
    if type in DAY_TIME_INTERVALS:
        return _duration_text(value)
    if type == VARIANT:
        return variant_text(value["value"], value["metadata"])
    nested = nested_type(type)
    return value if nested is None else _nested_json(value, nested)


def variant_text(value: bytes, metadata: bytes) -> str:
    """The JSON text of a variant, from its two stored parts."""
    from pyspark.sql.types import VariantVal

    return VariantVal(value, metadata).toJson()


def from_json(value: Any, column: Column) -> Any:
    """The Python value of a JSON form; ``None`` for null. Raises ``InvalidInput`` with column, expected and actual."""
    return None if value is None else _parse(value, column, InvalidInput)


def key_from_json(value: dict[str, Any], columns: Sequence[Column]) -> tuple[Any, ...]:
    """A key from an object by column name. Raises ``InvalidKey`` for missing and unknown columns and wrong types."""
    names = [column.name for column in columns]
    missing = [name for name in names if name not in value]
    unknown = [name for name in value if name not in names]
    if missing or unknown:
        said = [f"{', '.join(missing)} missing"] if missing else []
        said += [f"{', '.join(map(str, unknown))} unknown"] if unknown else []
        raise InvalidKey(f"The key must have exactly the columns {', '.join(names)}: {'; '.join(said)}.")
    parts = ((value[column.name], column) for column in columns)
    return tuple(None if part is None else _parse(part, column, InvalidKey) for part, column in parts)


def key_from_path(path: str, columns: Sequence[Column]) -> tuple[Any, ...]:
    """A key from its percent-encoded form in a URL path (``JFK,LAX``). Raises ``InvalidKey``."""
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
    parts = zip(texts, columns, strict=True)
    return tuple(None if text == NULL_TEXT else from_text(text, column) for text, column in parts)


def key_to_path(key: Sequence[Any], columns: Sequence[Column]) -> str:
    """The inverse of :func:`key_from_path`. Raises ``InvalidKey`` for the string that denotes null in a path."""
    return ",".join(quote(_key_text(value, column), safe="") for value, column in zip(key, columns, strict=True))


def from_text(text: str, column: Column) -> Any:
    """A key column's value from its percent-decoded form in a URL path. Raises ``InvalidKey``."""
    if column.type == "boolean" and text in ("true", "false"):
        return text == "true"
    if column.type in INTEGER_BITS and _INTEGER.fullmatch(text):
        return _parse(int(text), column, InvalidKey)
    if column.type in FLOATING and _NUMBER.fullmatch(text):
        return float(text)
    if nested_type(column.type) is not None:
        try:
            return _parse(json.loads(text), column, InvalidKey)
        except json.JSONDecodeError:
            pass  # the call below raises with the text
    return _parse(text, column, InvalidKey)


def _key_text(value: Any, column: Column) -> str:
    if value == NULL_TEXT:
        raise InvalidKey(
            f"Column {column.name!r}: the text of one zero character represents null in a path. Look up such a key "
            "with a request body (POST ../lookup), where null is null."
        )
    return NULL_TEXT if value is None else _text(value, column.type)


def _text(value: Any, type: str) -> str:
    form = to_json(value, type)
    return form if isinstance(form, str) else str(form).lower()


def _infinity(value: float) -> str:
    return "Infinity" if value > 0 else "-Infinity"


def _parse(value: Any, column: Column, error: type[InvalidInput]) -> Any:
    try:
        return _value(value, column.type)
    except (ValueError, TypeError, OverflowError, InvalidOperation, InvalidKey):
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
    if nested := nested_type(type):
        if nested.kind == "array":
            return f"an array, each element {_expected_form(nested.types[0])}"
        if nested.kind == "map":
            return f"an object, each value {_expected_form(nested.types[1])}"
        return f"an object with the fields {', '.join(nested.names)}"
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
    if nested := nested_type(type):
        return _nested_value(value, nested)
    if not isinstance(value, str):
        raise TypeError
    if type == "string":
        value.encode()  # raises for a lone surrogate
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
    if type in DAY_TIME_INTERVALS:
        return _duration(value)
    if type == VARIANT:
        return _variant(value)
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


def _nested_json(value: Any, nested: NestedType) -> Any:
    if nested.kind == "array":
        return [to_json(element, nested.types[0]) for element in value]
    if nested.kind == "struct":
        return {name: to_json(value[name], type) for name, type in zip(nested.names, nested.types, strict=True)}
    key_type, value_type = nested.types
    return {_text(key, key_type): to_json(inner, value_type) for key, inner in dict(value).items()}


def _nested_value(value: Any, nested: NestedType) -> Any:
    if nested.kind == "array":
        return [_inner(element, nested.types[0]) for element in _checked(value, isinstance(value, list))]
    _checked(value, isinstance(value, dict))
    if nested.kind == "struct":
        _checked(value, value.keys() <= set(nested.names))
        return {name: _inner(value.get(name), type) for name, type in zip(nested.names, nested.types, strict=True)}
    key_type, value_type = nested.types
    key = Column(name="key", type=key_type)
    return [(from_text(text, key), _inner(inner, value_type)) for text, inner in value.items()]


def _inner(value: Any, type: str) -> Any:
    return None if value is None else _value(value, type)


def _duration_text(value: timedelta) -> str:
    microseconds = value // _MICROSECOND
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{'-' if microseconds < 0 else ''}P{days}DT{hour}H{minute}M{second}.{fraction:06}S"


def _duration(value: str) -> timedelta:
    match = _DURATION.fullmatch(value)
    if match is None or not any(match.groups()[1:]):
        raise ValueError
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:5])
    microseconds = int((match[6] or "").ljust(6, "0"))
    length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, microseconds=microseconds)
    _checked(length, length // _MICROSECOND < 1 << 63)
    return -length if match[1] else length


def _variant(value: str) -> dict[str, bytes]:
    from pyspark.sql.types import VariantVal

    parsed = VariantVal.parseJson(value)
    return {"value": bytes(parsed.value), "metadata": bytes(parsed.metadata)}
