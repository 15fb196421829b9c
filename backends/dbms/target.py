"""The target table: found or created, compared with the stream's columns, and described column by column."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Column, Connection, Inspector, MetaData, Table

from epochal.backends.dbms.address import DIALECTS, reflecting
from epochal.backends.dbms.column_types import ColumnType, column_type, sql_type
from epochal.backends.dbms.writing import Writing
from epochal.declarations.names import closest, listed
from epochal.errors import SchemaError, SinkError
from epochal.state.types import shown_type


@dataclass(frozen=True)
class TargetColumn:
    """A column of the table, as plain data that is sent to tasks."""

    name: str
    type: ColumnType
    nullable: bool
    required: bool
    """Must be written: not nullable, and without a default or generated value."""
    computed: bool


@dataclass(frozen=True)
class Target:
    """Description of a table at the start of an attempt."""

    name: str
    columns: tuple[TargetColumn, ...]
    unique: tuple[frozenset[str], ...]
    """The column sets of the primary key and of every unique constraint or index over whole columns."""

    def column(self, name: str) -> TargetColumn | None:
        return next((column for column in self.columns if column.name == name), None)


def find(connection: Connection, writing: Writing) -> Target | None:
    """Describe the existing table; ``None`` if it is missing. Raises ``SinkError`` for one without transactions."""
    inspector = sa.inspect(connection)
    name, schema = writing.table_name, writing.schema_name
    if not inspector.has_table(name, schema=schema):
        return None
    dialect = DIALECTS[connection.dialect.name]
    if dialect == "mysql":
        _check_engine(inspector, writing)
    columns = []
    primary = inspector.get_pk_constraint(name, schema=schema)["constrained_columns"]
    with reflecting(connection):
        reflected = inspector.get_columns(name, schema=schema)
    for found in reflected:
        # SQLite's INTEGER PRIMARY KEY is numbered automatically and not null, but reflection reports neither.
        own_number = dialect == "sqlite" and primary == [found["name"]] and isinstance(found["type"], sa.INTEGER)
        identity = found.get("identity")
        filled = bool(found.get("default") is not None or identity or own_number or found.get("autoincrement") is True)
        nullable = found["nullable"] and found["name"] not in primary
        columns.append(
            TargetColumn(
                name=found["name"],
                type=column_type(found["type"], dialect),
                nullable=nullable,
                required=not nullable and not filled and not found.get("computed"),
                computed=bool(found.get("computed"))
                or bool(found["identity"]["always"] if found.get("identity") else False),
            )
        )
    return Target(writing.table, tuple(columns), _unique_sets(inspector, writing, primary))


def create(connection: Connection, writing: Writing, schema: pa.Schema) -> None:
    """Create the table for the stream's columns, with the keys as its primary key, unless it exists."""
    connection.execute(sa.schema.CreateTable(planned(connection, writing, schema), if_not_exists=True))


def planned(connection: Connection, writing: Writing, schema: pa.Schema) -> Table:
    """Return the table to be created. Raises ``SchemaError`` for a column without an SQL type."""
    dialect = DIALECTS[connection.dialect.name]
    _check_order(writing, schema, dialect)
    columns = []
    for field in writing.fields(schema):
        key = field.name in writing.table_keys
        try:
            type = sql_type(field.type, dialect, key)
        except SchemaError as error:
            raise SchemaError(
                f"Table {writing.table} cannot be created: column {field.name!r}: {error.message}"
            ) from None
        columns.append(Column(field.name, type, primary_key=key, nullable=not key, autoincrement=False))
    return Table(writing.table_name, MetaData(), *columns, schema=writing.schema_name, mysql_engine="InnoDB")


def described(table: Table, dialect: str) -> Target:
    """Describe a table that is to be created."""
    columns = tuple(
        TargetColumn(column.name, column_type(column.type, dialect), bool(column.nullable), not column.nullable, False)
        for column in table.columns
    )
    return Target(table.fullname, columns, (frozenset(column.name for column in table.primary_key.columns),))


def check(target: Target, writing: Writing, schema: pa.Schema, dialect: str) -> None:
    """Check that rows of this schema can be written. Raises ``SchemaError`` for the first mismatch."""
    where = f"Table {target.name}"
    known = [column.name for column in target.columns]
    for field in writing.fields(schema):
        column = target.column(field.name)
        if column is None:
            raise SchemaError(
                f"{where} has no column {field.name!r}.{closest(field.name, known)} It has {listed(known)}. Add it, or "
                f"map the stream's column to one of these, or to None: columns={{{field.name!r}: None}}."
            )
        if column.computed:
            raise SchemaError(f"{where} computes column {column.name!r} itself. Map the stream's column to None.")
        if not column.type.takes(field.type):
            raise SchemaError(
                f"{where}: column {column.name!r} is {column.type.shown}, which does not accept every "
                f"{shown_type(field.type)}. Cast it in the pipeline, or change the table's column."
            )
    written = set(writing.written(schema).values())
    for column in target.columns:
        if column.required and column.name not in written:
            raise SchemaError(
                f"{where}: column {column.name!r} accepts no null and has no default, and the stream does not write "
                "it. Add it to the stream, or give the column a default."
            )
    _check_keys(target, writing)
    _check_order(writing, schema, dialect, target)


def missing(writing: Writing) -> SchemaError:
    return SchemaError(
        f"There is no table {writing.table}. Create it, correct the name, or let the sink create it: create=True."
    )


def _check_keys(target: Target, writing: Writing) -> None:
    keys = frozenset(writing.table_keys)
    if keys and keys not in target.unique:
        raise SchemaError(
            f"Table {target.name} has no primary key or unique constraint over exactly {listed(sorted(keys))}, which "
            f"an upsert needs. Add one: ALTER TABLE {target.name} ADD UNIQUE ({', '.join(writing.table_keys)})."
        )


def _check_order(writing: Writing, schema: pa.Schema, dialect: str, target: Target | None = None) -> None:
    """Check that the type of ``order_by`` is ordered, and the table's column alike. Raises ``SchemaError``."""
    if writing.order_by is None:
        return
    type = schema.field(writing.order_by).type
    if not any(ordered(type) for ordered in _ORDERED):
        raise SchemaError(
            f"Table {writing.table}: order_by names column {writing.order_by!r}, whose type {shown_type(type)} has no "
            "order. Use a column of numbers, dates, timestamps or strings."
        )
    column = None if target is None or writing.guard is None else target.column(writing.guard)
    why = None
    if writing.guard is not None and dialect == "sqlite" and pa.types.is_decimal(type):
        why = "SQLite does not compare decimals exactly"
    elif column is not None and pa.types.is_string(type) and column.type.family != "text":
        why = f"its type {column.type.shown} may order values differently from the stream's strings"
    if why is not None:
        raise SchemaError(
            f"Table {writing.table}: column {writing.guard!r} cannot protect newer rows: {why}. Order by another "
            "column, or set keep_newer=False: order_by then orders the rows of one epoch only."
        )


_ORDERED = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
)


def _unique_sets(inspector: Inspector, writing: Writing, primary: list[str]) -> tuple[frozenset[str], ...]:
    name, schema = writing.table_name, writing.schema_name
    found = [frozenset(primary)] if primary else []
    found += [frozenset(each["column_names"]) for each in inspector.get_unique_constraints(name, schema=schema)]
    for index in inspector.get_indexes(name, schema=schema):
        options = index.get("dialect_options", {})
        partial = any(options.get(f"{dialect}_where") is not None for dialect in ("postgresql", "sqlite"))
        if index.get("unique") and not partial and None not in index["column_names"]:
            found.append(frozenset(name for name in index["column_names"] if name))
    return tuple(dict.fromkeys(found))


def _check_engine(inspector: Inspector, writing: Writing) -> None:
    engine = inspector.get_table_options(writing.table_name, schema=writing.schema_name).get("mysql_engine", "InnoDB")
    if engine.lower() != "innodb":
        raise SinkError(
            f"Table {writing.table} uses the storage engine {engine}, which has no transactions. Change it: ALTER "
            f"TABLE {writing.table} ENGINE=InnoDB."
        )
