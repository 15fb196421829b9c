"""The types that state can have: Spark's names for them, and their Arrow types.

State columns are flat: what other systems nest is kept in a ``ListState`` or a ``MapState``, so that every row stays
readable by any Parquet reader and every change stays a row.
"""

from __future__ import annotations

import re

import pyarrow as pa

from epochal.errors import SchemaError

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

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NESTED = ("array", "map", "struct", "variant")
_FIX = {
    "array": "keep the elements in a ListState",
    "map": "keep the entries in a MapState",
    "struct": "give each field a column of its own",
    "variant": "keep the JSON text in a string column",
}


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a Spark type, named as ``StructType.simpleString`` spells it. Raises ``SchemaError``."""
    known = _ARROW.get(name)
    if known is not None:
        return known
    decimal = decimal_of(name)
    if decimal is None:
        raise SchemaError(_refusal(name))
    return pa.decimal128(*decimal)


def spark_type(arrow: pa.DataType) -> str:
    """The Spark name of an Arrow type, as Spark hands it to Python. Raises ``SchemaError``."""
    if pa.types.is_dictionary(arrow):
        return spark_type(arrow.value_type)
    if pa.types.is_timestamp(arrow):
        return "timestamp_ntz" if arrow.tz is None else "timestamp"
    if pa.types.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    try:
        return _SPARK[arrow]
    except KeyError:
        raise SchemaError(_refusal(str(arrow))) from None


def decimal_of(name: str) -> tuple[int, int] | None:
    """Precision and scale of ``decimal(p,s)``; ``None`` for any other type."""
    match = _DECIMAL.fullmatch(name)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    if not (1 <= precision <= 38 and scale <= precision):
        raise SchemaError(f"Type {name} is not valid: the precision is 1 to 38 and the scale at most the precision.")
    return precision, scale


def check_column(table: str, column: str, type: str, *, key: bool) -> None:
    """Can a state table have this column? Raises ``SchemaError`` that names the table, the column and the fix."""
    where = f"The {'key column' if key else 'column'} {column!r} of state {table!r}"
    try:
        arrow_type(type)
    except SchemaError as refused:
        raise SchemaError(f"{where} cannot be used. {refused.message}") from None
    if key and not is_key_type(type):
        raise SchemaError(
            f"{where} is {type}, and floating point cannot be a key: equal numbers may differ in their last bit. "
            "Cast it to decimal(p,s), bigint or string first."
        )


def is_key_type(type: str) -> bool:
    """Floating point cannot be a key: NaN and the two zeros compare and hash differently from system to system."""
    return type not in FLOATING and (type in _ARROW or decimal_of(type) is not None)


def _refusal(type: str) -> str:
    for nested in _NESTED:
        if type.startswith(nested):
            return f"State cannot hold {type}: {_FIX[nested]}."
    if type.startswith(("list", "large_list")):
        return f"State cannot hold {type}: {_FIX['array']}."
    if type.startswith(("char", "varchar", "string collate")):
        return f"State cannot hold {type}: use string."
    return f"State cannot hold {type}; it can hold {', '.join(_ARROW)} and decimal(p,s)."
