"""Writing of rows to SQLite, MySQL and MariaDB by SQLAlchemy's statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import Connection, MetaData, Table, exc
from sqlalchemy.dialects import mysql, sqlite

from epochal.backends import json_lines
from epochal.backends.dbms.column_types import with_exact_types
from epochal.backends.dbms.failures import is_refusal, refusal
from epochal.backends.dbms.rows import described
from epochal.backends.dbms.writing import DELETE, INSERT, OPERATION, UPSERT, Writing

Rows = Sequence[Mapping[str, Any]]
Execute = Callable[[Connection, Rows], None]
STATEMENT_ROWS = 5_000


class PortableTable:
    """A table reflected from one connection, usable with any connection to the same database."""

    def __init__(self, connection: Connection, writing: Writing) -> None:
        self._writing = writing
        found = Table(writing.table_name, MetaData(), schema=writing.schema_name, autoload_with=connection)
        self._table = with_exact_types(found, connection.dialect.name)

    def apply(self, connection: Connection, chunks: Iterable[pa.Table]) -> None:
        """Insert the chunks, or merge chunks with one row per key, in the open transaction."""
        for chunk in chunks:
            for execute, rows in self._operations(connection, chunk):
                for first in range(0, rows.num_rows, STATEMENT_ROWS):
                    _run(connection, execute, self._plain(rows.slice(first, STATEMENT_ROWS)))

    def _operations(self, connection: Connection, chunk: pa.Table) -> Iterable[tuple[Execute, pa.Table]]:
        if not self._writing.keys:
            yield self._insert, chunk
            return
        if OPERATION not in chunk.column_names:
            yield self._upsert, chunk
            return
        for operation, execute in ((DELETE, self._delete), (INSERT, self._insert), (UPSERT, self._upsert)):
            rows = chunk.filter(pc.equal(chunk[OPERATION], operation)).drop_columns([OPERATION])
            if rows.num_rows:
                yield execute, rows

    def _insert(self, connection: Connection, rows: Rows) -> None:
        connection.execute(self._table.insert(), rows)

    def _upsert(self, connection: Connection, rows: Rows) -> None:
        keys = self._writing.table_keys
        others = [name for name in rows[0] if name not in keys]
        statement: Any
        if connection.dialect.name == "sqlite":
            statement = sqlite.insert(self._table)
            target = [self._table.c[key] for key in keys]
            if others:
                guard = self._writing.guard
                newer = None if guard is None else self._not_newer(connection, guard, statement.excluded[guard])
                statement = statement.on_conflict_do_update(
                    target, set_={name: statement.excluded[name] for name in others}, where=newer
                )
            else:
                statement = statement.on_conflict_do_nothing(target)
        else:
            statement = mysql.insert(self._table)
            # An existing row that has only keys is set to its own values: INSERT IGNORE would hide other errors.
            statement = statement.on_duplicate_key_update(
                self._updates(connection, others or list(keys[:1]), statement.inserted)
            )
        connection.execute(statement, rows)

    def _updates(self, connection: Connection, names: list[str], new: Any) -> list[tuple[str, Any]]:
        """Return MySQL's assignments, which run in order: the guard changes last, because the others read it."""
        guard = self._writing.guard
        if guard is None or guard not in names:
            return [(name, new[name]) for name in names]
        replaced = self._not_newer(connection, guard, new[guard])
        ordered = [name for name in names if name != guard] + [guard]
        return [(name, sa.func.IF(replaced, new[name], self._table.c[name])) for name in ordered]

    def _not_newer(self, connection: Connection, guard: str, new: Any) -> Any:
        """Return a condition: the stored row is not newer than the new one. Order as in Arrow: nulls first, text by
        its bytes."""
        column = self._table.c[guard]
        stored: Any = column
        if isinstance(column.type, sa.String):
            if connection.dialect.name == "sqlite":
                stored, new = sa.collate(stored, "BINARY"), sa.collate(new, "BINARY")
            else:
                stored, new = sa.cast(stored, sa.LargeBinary), sa.cast(new, sa.LargeBinary)
        return sa.or_(column.is_(None), new >= stored)

    def _delete(self, connection: Connection, rows: Rows) -> None:
        keys = self._writing.table_keys
        same = sa.and_(*(self._table.c[key] == sa.bindparam(f"key_{number}") for number, key in enumerate(keys)))
        deciding = list(keys)
        guard = self._writing.guard
        if guard is not None:
            new = sa.bindparam(f"key_{len(keys)}", type_=self._table.c[guard].type)
            same = sa.and_(same, self._not_newer(connection, guard, new))
            deciding.append(guard)
        parameters = [{f"key_{number}": row[name] for number, name in enumerate(deciding)} for row in rows]
        connection.execute(self._table.delete().where(same), parameters)

    def _plain(self, rows: pa.Table) -> list[dict[str, Any]]:
        """Return Python rows as the drivers take them: times in UTC without a zone, nested values as JSON."""
        columns: dict[str, list[Any]] = {}
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            values = column.to_pylist()
            if pa.types.is_timestamp(column.type) and column.type.tz is not None:
                values = [_utc(value) for value in values]
            elif pa.types.is_nested(column.type):
                values = json_lines.texts(column).to_pylist()
            columns[name] = values
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _run(connection: Connection, execute: Execute, rows: Rows) -> None:
    """Write all rows by one statement; when the database refuses one of them, find that row."""
    savepoint = connection.begin_nested()
    try:
        execute(connection, rows)
    except exc.DBAPIError as error:
        if not is_refusal(error):
            raise
        savepoint.rollback()
        for row in rows:
            try:
                execute(connection, [row])
            except exc.DBAPIError as refused:
                raise refusal("At its commit ", f"row {described(dict(row))}: {refused.orig}", refused) from refused
        raise
    savepoint.commit()


def _utc(value: datetime | None) -> datetime | None:
    return value.astimezone(UTC).replace(tzinfo=None) if value is not None else None
