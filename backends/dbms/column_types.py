"""Column types: the values that a table's column accepts, and its Arrow type for writing and reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import Any, Literal

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.types import UserDefinedType

from epochal.errors import SchemaError
from epochal.state.types import shown_type

Family = Literal[
    "boolean", "integer", "float", "decimal", "text", "binary", "json", "uuid", "date", "timestamp", "instant", "time",
    "other",
]  # fmt: skip
"""``timestamp`` has no time zone, ``instant`` has one; ``other`` is a type that only the database can check."""
LONGEST_MYSQL_KEY = 255
SQLITE_DIGITS = 15
"""Digits of a decimal that SQLite stores in a numeric column, except integers of 64 bits."""
_OF_MYSQL = (mysql.DATETIME, mysql.TIMESTAMP)
_BYTES = {"TINY": 2**8 - 1, "": 2**16 - 1, "MEDIUM": 2**24 - 1, "LONG": 2**32 - 1}
_MYSQL_BYTES = {f"{size}{kind}": limit for size, limit in _BYTES.items() for kind in ("TEXT", "BLOB")}


@dataclass(frozen=True)
class ColumnType:
    """Type of a column. ``size``: bits of a number, characters of a text. ``precision``, ``scale``: those of a decimal.

    ``None``: no limit. ``bytes``: length of a text in UTF-8, or of binary. ``labels``: labels of an enum. ``digits``:
    decimals of a second. ``strict_json``: JSON without zero characters and single surrogates. ``narrow``: MySQL's
    ``TIMESTAMP``. ``inexact``: decimals that SQLite stores as floating-point numbers."""

    family: Family
    shown: str
    size: int | None = None
    precision: int | None = None
    scale: int | None = None
    bytes: int | None = None
    labels: tuple[str, ...] = ()
    digits: int | None = None
    unsigned: bool = False
    strict_json: bool = False
    narrow: bool = False
    inexact: bool = False

    def takes(self, type: pa.DataType) -> bool:
        """Return whether every value of an Arrow column fits, except for the length of text, which is checked row by
        row."""
        if pa.types.is_boolean(type):
            return self.family == "boolean"
        if pa.types.is_integer(type):
            return self._takes_integer(type)
        if pa.types.is_floating(type):
            return self.family == "float" and (self.size or 64) >= type.bit_width
        if pa.types.is_decimal(type):
            return self._takes_digits(type.precision - type.scale, type.scale)
        if pa.types.is_string(type) or pa.types.is_large_string(type):
            return self.family in ("text", "json", "uuid", "other")
        if pa.types.is_binary(type) or pa.types.is_large_binary(type):
            return self.family == "binary"
        if pa.types.is_date(type):
            return self.family in ("date", "timestamp", "instant")
        if pa.types.is_timestamp(type):
            return self.family in ("timestamp", "instant")
        if pa.types.is_time(type):
            return self.family == "time"
        as_json = self.family == "json" or (self.family == "text" and self.size is None)
        return bool(pa.types.is_nested(type)) and as_json

    def _takes_integer(self, type: pa.DataType) -> bool:
        bits = int(type.bit_width)
        if self.family == "integer":
            return (self.size or 64) >= bits
        if self.family == "float":
            return (self.size or 64) == 64 and bits <= 32
        return self._takes_digits({8: 3, 16: 5, 32: 10, 64: 19}[bits], 0)

    def _takes_digits(self, before: int, after: int) -> bool:
        if self.family != "decimal":
            return False
        return self.precision is None or (after <= (self.scale or 0) and before <= self.precision - (self.scale or 0))

    @property
    def arrow(self) -> pa.DataType:
        """Arrow type of the column for reading. Raises ``SchemaError`` for a type without a counterpart."""
        match self.family:
            case "integer":
                return {8: pa.int8(), 16: pa.int16(), 32: pa.int32()}.get(self.size or 64, pa.int64())
            case "float":
                return pa.float32() if self.size == 32 else pa.float64()
            case "decimal":
                return pa.decimal128(self.precision or 38, self.scale if self.precision else 18)
            case "other":
                raise SchemaError(f"type {self.shown} cannot be read; leave the column out with columns=[..].")
        plain: dict[str, pa.DataType] = {
            "boolean": pa.bool_(),
            "text": pa.string(),
            "json": pa.string(),
            "uuid": pa.string(),
            "time": pa.string(),
            "binary": pa.binary(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us"),
            "instant": pa.timestamp("us", "UTC"),
        }
        return plain[self.family]


class SqliteDecimal(UserDefinedType[Decimal]):
    """Decimals in SQLite, which has no such type and rounds a number to 15 digits.

    ``DECIMAL_TEXT(precision, scale)`` stores them as text with all digits. A numeric column, which is also read and
    written, stores all digits of an integer of 64 bits, and 15 digits of any other number.
    """

    cache_ok = True

    def __init__(self, precision: int | None = None, scale: int | None = None, as_text: bool = True) -> None:
        self.precision, self.scale, self.as_text = precision, scale, as_text

    def get_col_spec(self, **_: Any) -> str:
        limits = f"({self.precision}, {self.scale})" if self.precision is not None else ""
        return f"{'DECIMAL_TEXT' if self.as_text else 'NUMERIC'}{limits}"

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[Any], Any]:
        return lambda value: format(value, "f") if isinstance(value, Decimal) else value

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], Decimal | None]:
        return self._decimal

    def _decimal(self, value: Any) -> Decimal | None:
        if value is None:
            return None
        exact = Decimal(repr(value) if isinstance(value, float) else value)
        if self.scale is None or exact.as_tuple().exponent == -self.scale:
            return exact
        return exact.quantize(Decimal(1).scaleb(-self.scale), context=Context(prec=76))


SQLiteDialect.ischema_names["DECIMAL_TEXT"] = SqliteDecimal


def with_exact_types(table: sa.Table, dialect: str) -> sa.Table:
    """Set types that preserve the stored values of a reflected table: decimals of SQLite, UUIDs as text."""
    for column in table.columns:
        if dialect == "sqlite" and isinstance(column.type, sa.Numeric) and not isinstance(column.type, sa.Float):
            column.type = SqliteDecimal(column.type.precision, column.type.scale, as_text=False)
        elif isinstance(column.type, sa.Uuid):
            column.type = sa.Uuid(as_uuid=False)
    return table


def column_type(type: Any, dialect: str) -> ColumnType:
    """Return the column type of a reflected SQLAlchemy type."""
    found = _column_type(type, dialect)
    unsigned = bool(getattr(type, "unsigned", False) or getattr(type, "zerofill", False))
    bytes = _MYSQL_BYTES.get(str(type).partition("(")[0].partition(" ")[0]) if dialect == "mysql" else None
    if found.family == "binary" and bytes is None:
        bytes = getattr(type, "length", None)
    return replace(found, unsigned=unsigned, bytes=bytes) if unsigned or bytes is not None else found


def _column_type(type: Any, dialect: str) -> ColumnType:
    shown = str(type).lower() if not isinstance(type, sa.types.NullType) else "unknown to SQLAlchemy"
    everything_is_64_bits = dialect == "sqlite"
    match type:
        case sa.Boolean():
            return ColumnType("boolean", shown)
        case mysql.TINYINT():
            return ColumnType("boolean" if type.display_width == 1 else "integer", shown, 8)
        case mysql.MEDIUMINT():
            return ColumnType("integer", shown, 24)
        case sa.BigInteger():
            return ColumnType("integer", shown, 64)
        case sa.SmallInteger():
            return ColumnType("integer", shown, 64 if everything_is_64_bits else 16)
        case sa.Integer():
            return ColumnType("integer", shown, 64 if everything_is_64_bits else 32)
        case sa.Float():
            single = isinstance(type, sa.REAL | mysql.FLOAT) and not everything_is_64_bits
            return ColumnType("float", shown, 32 if single else 64)
        case sa.Numeric():
            inexact = dialect == "sqlite"
            return ColumnType("decimal", shown, precision=type.precision, scale=type.scale, inexact=inexact)
        case SqliteDecimal():
            return ColumnType("decimal", shown, precision=type.precision, scale=type.scale)
        case sa.JSON():
            return ColumnType("json", shown, strict_json=isinstance(type, postgresql.JSONB) or dialect == "mysql")
        case sa.Uuid():
            return ColumnType("uuid", shown)
        case sa.Enum():
            return ColumnType("text", shown, labels=tuple(type.enums))
        case sa.String():
            return ColumnType("text", shown, type.length)
        case sa.LargeBinary() | sa.types._Binary():
            return ColumnType("binary", shown)
        case sa.DateTime():
            narrow = isinstance(type, sa.TIMESTAMP) and dialect == "mysql"
            digits = (type.fsp or 0) if isinstance(type, _OF_MYSQL) else getattr(type, "precision", None)
            family: Family = "instant" if type.timezone or narrow else "timestamp"
            return ColumnType(family, shown, digits=digits, narrow=narrow)
        case sa.Date():
            return ColumnType("date", shown)
        case sa.Time():
            return ColumnType("time", shown)
    return ColumnType("other", shown)


def sql_type(type: pa.DataType, dialect: str, key: bool) -> Any:
    """Return the SQL type of a new column for an Arrow column. Raises ``SchemaError`` if none exists."""
    if pa.types.is_boolean(type):
        return sa.Boolean()
    if pa.types.is_integer(type):
        return sa.SmallInteger() if type.bit_width <= 16 else sa.Integer() if type.bit_width == 32 else sa.BigInteger()
    if pa.types.is_floating(type):
        single = type.bit_width == 32 and dialect == "postgresql"
        return sa.REAL() if single else sa.Double()
    if pa.types.is_decimal(type):
        exact = dialect != "sqlite" or type.precision <= (18 if type.scale == 0 else SQLITE_DIGITS)
        return sa.Numeric(type.precision, type.scale) if exact else SqliteDecimal(type.precision, type.scale)
    if pa.types.is_string(type):
        longest = LONGEST_MYSQL_KEY if key else 2**30
        return _text(longest) if dialect == "mysql" else sa.Text()
    if pa.types.is_binary(type):
        if dialect == "mysql":
            return sa.VARBINARY(LONGEST_MYSQL_KEY) if key else mysql.LONGBLOB()
        return sa.LargeBinary()
    if pa.types.is_date(type):
        return sa.Date()
    if pa.types.is_timestamp(type):
        return mysql.DATETIME(fsp=6) if dialect == "mysql" else sa.DateTime(timezone=type.tz is not None)
    if pa.types.is_nested(type):
        return postgresql.JSONB() if dialect == "postgresql" else sa.JSON()
    raise SchemaError(f"type {shown_type(type)} has no counterpart in {dialect}; cast the column.")


def _text(longest: int) -> Any:
    """MySQL compares text case-insensitively by default; Spark's keys are case-sensitive."""
    exact = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
    return mysql.VARCHAR(longest, **exact) if longest == LONGEST_MYSQL_KEY else mysql.LONGTEXT(**exact)
