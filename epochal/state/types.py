"""Types of state columns: Spark's names and their Arrow types.

These are the Arrow types that Spark exchanges with Python. Key columns have flat types: the encoded bytes sort like the
columns, and the hash is Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa

from epochal.errors import InvalidKey, SchemaError
from epochal.state.type_names import NestedType, array_name, decimal_of, map_name, nested_type, struct_name

_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SPARK = {arrow: name for name, arrow in _ARROW.items()}
_SPARK |= {pa.large_string(): "string", pa.string_view(): "string"}
_SPARK |= {pa.large_binary(): "binary", pa.binary_view(): "binary"}

INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
FLOATING = frozenset({"float", "double"})

_UNITS = ("day", "hour", "minute", "second")
DAY_TIME_INTERVALS = frozenset(
    f"interval {first}" if first == last else f"interval {first} to {last}"
    for position, first in enumerate(_UNITS)
    for last in _UNITS[position:]
)
_INTERVAL = "interval day to second"
VARIANT = "variant"
_VARIANT_ARROW = pa.struct(
    [
        pa.field("value", pa.binary()),
        pa.field("metadata", pa.binary(), metadata={b"variant": b"true"}),
    ]
)
"""Spark's Arrow form of a variant: the field metadata identifies the struct as a variant."""

_REFUSED = {
    "interval year": "keep the number of months as int",
    "interval month": "keep the number of months as int",
    "interval": "use an interval of days to seconds (make_dt_interval), and keep months as int",
    "time": "keep it as string, or as a number of seconds",
    "void": "cast it to the type that it is to have",
    "char": "use string",
    "varchar": "use string",
    "string collate": "use string",
    "geometry": "keep its well-known binary (st_asbinary) in a binary column",
    "geography": "keep its well-known binary (st_asbinary) in a binary column",
}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH = _EPOCH.replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_EXACT = Context(prec=40)


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a Spark type, named as :mod:`epochal.state.type_names` spells it. Raises ``SchemaError``.

    All nested values are nullable, except the keys of a map.
    """
    known = _ARROW.get(name)
    if known is not None:
        return known
    if name in DAY_TIME_INTERVALS:
        return pa.duration("us")
    if name == VARIANT:
        return _VARIANT_ARROW
    nested = nested_type(name)
    if nested is not None:
        return _nested_arrow(nested)
    decimal = decimal_of(name)
    if decimal is None:
        raise SchemaError(_refusal(name))
    return pa.decimal128(*decimal)


def spark_type(arrow: pa.DataType) -> str:
    """The Spark name of an Arrow type that Spark passes to Python. Raises ``SchemaError``."""
    if pa.types.is_dictionary(arrow):
        return spark_type(arrow.value_type)
    if pa.types.is_timestamp(arrow):
        return "timestamp_ntz" if arrow.tz is None else "timestamp"
    if pa.types.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_duration(arrow):
        return _INTERVAL
    if pa.types.is_map(arrow):
        return map_name(spark_type(arrow.key_type), spark_type(arrow.item_type))
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return array_name(spark_type(arrow.value_type))
    if is_variant(arrow):
        return VARIANT
    if pa.types.is_struct(arrow):
        return struct_name([(field.name, spark_type(field.type)) for field in arrow])
    try:
        return _SPARK[arrow]
    except KeyError:
        raise SchemaError(_refusal(str(arrow))) from None


_ARROW_ONLY: Final = {
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date64(): "date",
    pa.null(): "void",
}
_NAMES: Final = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "bool": "boolean",
    "date32[day]": "date",
    "large_string": "string",
    "large_binary": "binary",
    "utf8": "string",
}
_NAMED = re.compile(
    r"(?<![\w'])(?:(?P<name>"
    + "|".join(map(re.escape, _NAMES))
    + r")|(?P<time>timestamp)\[\w+(?P<zone>, tz=[^\]]+)?\]|decimal\d*\((?P<precision>\d+), (?P<scale>-?\d+)\))(?![\w'])"
)


def shown_type(arrow: pa.DataType) -> str:
    """The name of an Arrow type for messages: Spark's name, or Arrow's own if Spark has no such type."""
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    try:
        return spark_type(arrow)
    except SchemaError:
        return _ARROW_ONLY.get(arrow, str(arrow))


def with_spark_types(error: object) -> str:
    """Arrow's message for a failed conversion, with Spark's type names in place of Arrow's."""

    def name(match: re.Match[str]) -> str:
        if match["name"] is not None:
            return _NAMES[match["name"]]
        if match["time"] is not None:
            return "timestamp_ntz" if match["zone"] is None else "timestamp"
        return f"decimal({match['precision']},{match['scale']})"

    return _NAMED.sub(name, str(error)).rstrip(" .")


def is_variant(arrow: pa.DataType) -> bool:
    """Return true if a struct is a variant, according to the metadata that Spark sets."""
    if not pa.types.is_struct(arrow) or [field.name for field in arrow] != ["value", "metadata"]:
        return False
    return (arrow.field("metadata").metadata or {}).get(b"variant") == b"true"


def nullable_within(arrow: pa.DataType) -> pa.DataType:
    """The type with all nested fields nullable, except the keys of maps.

    If a whole value is null, Spark leaves nulls in its non-nullable fields, and Arrow refuses to cast these.
    """
    if pa.types.is_struct(arrow):
        return pa.struct([field.with_type(nullable_within(field.type)).with_nullable(True) for field in arrow])
    if pa.types.is_map(arrow):
        item = arrow.item_field.with_type(nullable_within(arrow.item_type)).with_nullable(True)
        return pa.map_(arrow.key_field, item)
    if pa.types.is_list(arrow):
        return pa.list_(arrow.value_field.with_type(nullable_within(arrow.value_type)).with_nullable(True))
    return arrow


def check_column(table: str, column: str, type: str, *, key: bool) -> None:
    """Check that a state table can have this column. Raises ``SchemaError`` with the table, the column and the fix."""
    where = f"The {'key column' if key else 'column'} {column!r} of state {table!r}"
    try:
        arrow_type(type)
    except SchemaError as refused:
        raise SchemaError(f"{where} cannot be used. {refused.message}") from None
    if key and not is_key_type(type):
        raise SchemaError(f"{where} is {type} and cannot be a key. {key_fix(type)}")


def is_key_type(type: str) -> bool:
    """Return true if a column of this type can be a key.

    Floating-point columns cannot: the comparison and hash of NaN and the two zeros differ between systems.
    """
    return type not in FLOATING and (type in _ARROW or decimal_of(type) is not None)


def key_fix(type: str) -> str:
    """Remedy for a key column whose type cannot be a key."""
    if type in FLOATING:
        return "Equal floating point numbers may differ in their last bit: cast it to decimal(p,s), bigint or string."
    if nested_type(type) is not None or type == VARIANT:
        return "Key by its fields or elements, each as a separate column, or by to_json(..) of it."
    if type in DAY_TIME_INTERVALS:
        return (
            "Key by its length as a number: CAST(.. AS DECIMAL(18, 6)) of an interval of seconds, or a count of days."
        )
    return "Cast it to string first."


def _nested_arrow(nested: NestedType) -> pa.DataType:
    inner = [arrow_type(type) for type in nested.types]
    if nested.kind == "array":
        return pa.list_(pa.field("element", inner[0]))
    if nested.kind == "struct":
        names = [name.casefold() for name in nested.names]
        repeated = [name for name in nested.names if names.count(name.casefold()) > 1]
        if repeated:
            raise SchemaError(f"State cannot hold a struct with two fields named {repeated[0]!r}: rename one.")
        return pa.struct([pa.field(name, type) for name, type in zip(nested.names, inner, strict=True)])
    if nested_type(nested.types[0]) is not None or nested.types[0] == VARIANT:
        raise SchemaError(
            f"State cannot hold {map_name(*nested.types)}: the keys of a map must be of a flat type. "
            "Keep the entries as array<struct<..>>."
        )
    return pa.map_(pa.field("key", inner[0], nullable=False), pa.field("value", inner[1]))


def unheld_fix(type: str) -> str | None:
    """Remedy for a column whose type state cannot hold; ``None`` for an unknown type."""
    for refused, fix in _REFUSED.items():
        if type == refused or re.match(rf"{refused}\b", type):
            return fix
    return None


def _refusal(type: str) -> str:
    fix = unheld_fix(type)
    if fix is not None:
        return f"State cannot hold {type}: {fix}."
    known = f"{', '.join(_ARROW)}, decimal(p,s), interval day to second, variant, array<..>, map<..> and struct<..>"
    return f"State cannot hold {type}; it can hold {known}."


def integer_of(type: pa.DataType) -> Callable[[Any], int]:
    """Conversion of a Python value to the integer stored in an integer, date or time column."""
    if pa.types.is_date32(type):
        return _days
    if pa.types.is_timestamp(type):
        return _local_microseconds if type.tz is None else _microseconds
    return int


def value_of(type: pa.DataType) -> Callable[[Any], Any]:
    """Conversion of the value that ``struct`` unpacks from a fixed-width column to its Python value."""
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
    """The decimal times ``10 ** scale``. Raises ``InvalidKey`` if the product is not an integer."""
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
