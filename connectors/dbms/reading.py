"""Reading of tables into Arrow: static tables in the driver, slices in the executors by ranges of a column."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection, MetaData, Table

from epochal.backends.dbms import DatabaseAddress
from epochal.backends.dbms.address import reflecting
from epochal.backends.dbms.column_types import ColumnType, Family, column_type, with_exact_types
from epochal.backends.dbms.failures import translated
from epochal.declarations.names import closest, listed
from epochal.errors import SchemaError, SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Reading:
    """A table to read, and its columns (``None``: all). Serialisable; holds no connection."""

    address: DatabaseAddress
    table: str
    columns: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return f"Table {self.table} at {self.address.place}"

    def reflect(self, connection: Connection) -> Table:
        """Reflect the table's current definition. Raises ``SourceError`` if the table does not exist."""
        schema, _, name = self.table.rpartition(".")
        if not sa.inspect(connection).has_table(name, schema=schema or None):
            raise SourceError(f"{self.name} does not exist. Create it, or correct its name.")
        with reflecting(connection):
            table = Table(name, MetaData(), schema=schema or None, autoload_with=connection)
        with_exact_types(table, self.address.dialect)
        for column in table.columns:
            if isinstance(column.type, sa.Float):
                column.type.asdecimal = False  # otherwise MySQL returns decimals
        return table

    def chosen(self, table: Table) -> list[sa.Column[Any]]:
        """The columns to read. Raises ``SchemaError`` for a missing column."""
        known = [column.name for column in table.columns]
        for name in self.columns or ():
            if name not in known:
                raise SchemaError(f"{self.name} has no column {name!r}.{closest(name, known)} It has {listed(known)}.")
        return [table.c[name] for name in self.columns or known]

    def schema(self, table: Table) -> pa.Schema:
        """The Arrow schema of the columns to read. Raises ``SchemaError`` for a type without an Arrow equivalent."""
        fields = []
        for column in self.chosen(table):
            try:
                type = self.type_of(column).arrow
            except SchemaError as error:
                raise SchemaError(f"{self.name}: column {column.name!r}: {error.message}") from None
            fields.append(pa.field(column.name, type))
        return pa.schema(fields)

    def type_of(self, column: sa.Column[Any]) -> ColumnType:
        return column_type(column.type, self.address.dialect)

    def batches(self, connection: Connection, query: sa.Select[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Stream the query's rows in batches of ``BATCH_ROWS``."""
        result = connection.execution_options(stream_results=True, yield_per=BATCH_ROWS).execute(query)
        for partition in result.partitions():
            columns = list(zip(*partition, strict=True))
            arrays = [_array(values, field) for values, field in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def read_table(reading: Reading, max_rows: int, spark: SparkSession) -> DataFrame:
    """Read the whole table. Raises ``SourceError`` for more than ``max_rows`` rows."""
    engine = reading.address.engine()
    try:
        with (
            translated(reading.name, "be read", reading.address, SourceError),
            engine.connect().execution_options(epochal_reading=True) as connection,
        ):
            table = reading.reflect(connection)
            schema = reading.schema(table)
            query = sa.select(*reading.chosen(table)).limit(max_rows + 1)
            found = pa.Table.from_batches(reading.batches(connection, query, schema), schema)
    finally:
        engine.dispose()
    if found.num_rows > max_rows:
        raise SourceError(
            f"{reading.name} has more than {max_rows:,} rows, which a static table would hold in the driver. Raise "
            "max_rows if they fit, or read it with dbms.source."
        )
    return spark.createDataFrame(found)


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    type = field.type
    if pa.types.is_string(type):
        return pa.array([_text(value) for value in values], type)
    if pa.types.is_boolean(type):
        return pa.array([None if value is None else bool(value) for value in values], type)
    if pa.types.is_timestamp(type) and type.tz is not None:
        return pa.array([_instant(value) for value in values], type)
    return pa.array(values, type)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)


def _instant(value: datetime | None) -> datetime | None:
    """A time without a zone is UTC, the time zone of the sessions."""
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


Value = int | float | Decimal | datetime | date


@dataclass(frozen=True)
class Positions:
    """Encoding of the values of the slice column, and division of their ranges."""

    family: Family

    @classmethod
    def of(cls, name: str, type: ColumnType) -> Positions:
        """Positions of the column ``name``. Raises ``SourceError`` for a type without a portable order."""
        if type.family not in _READ or type.shown.startswith("decimal_text"):  # ordered as text
            raise SourceError(
                f"Column {name!r} is {type.shown}; slices are cut by a whole number, a decimal, a time or a date."
            )
        return cls(type.family)

    def encode(self, value: Value | None) -> dict[str, Any]:
        """The value as JSON for a slice. ``None`` is the position before the first row."""
        plain = value if value is None or isinstance(value, int) else _written(value)
        return {"value": plain}

    def decode(self, position: dict[str, Any]) -> Value | None:
        value = position.get("value")
        return None if value is None else _READ[self.family](value)

    def cut(self, first: Value, last: Value, parts: int) -> list[Value]:
        """Upper ends of at most ``parts`` ranges of equal width, the last of which ends at ``last``."""
        width: Any = last - first  # type: ignore[operator]
        if isinstance(width, int):
            inner: list[Any] = [first + width * part // parts for part in range(1, parts)]  # type: ignore[operator]
        else:
            inner = [first + width * part / parts for part in range(1, parts)]
        return sorted({value for value in inner if first <= value < last} | {last})


def _written(value: Any) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return value.isoformat() if isinstance(value, date | datetime) else str(value)


_READ: dict[Family, Callable[[Any], Value]] = {
    "integer": int,
    "decimal": Decimal,
    "timestamp": datetime.fromisoformat,
    "instant": datetime.fromisoformat,
    "date": date.fromisoformat,
}
