"""Apply chunks of rows to the table of a sink, in an open transaction, and find a row that the database refuses.

PostgreSQL receives rows by COPY and by one statement for many of them. To name the row that a constraint or a trigger
refuses, the chunks are applied again in a transaction that is rolled back, and halved until one row is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from epochal.backends.dbms import rows as row_rules
from epochal.backends.dbms.address import DIALECTS, DatabaseAddress
from epochal.backends.dbms.failures import is_database_error, is_refusal, reason
from epochal.backends.dbms.patience import patience
from epochal.backends.dbms.portable import PortableTable
from epochal.backends.dbms.rows import described
from epochal.backends.dbms.writing import ORDER, Writing
from epochal.backends.text_columns import row_at


def apply(connection: Connection, writing: Writing, chunks: Iterator[pa.Table]) -> None:
    """Insert the chunks; with keys, merge them in order. Each chunk then has one row per key."""
    if not _is_postgresql(connection):
        PortableTable(connection, writing).apply(connection, chunks)
        return
    from epochal.backends.dbms import postgresql  # its driver is an extra

    session: Any = connection.connection.driver_connection
    into = postgresql.merge if writing.keys else postgresql.insert
    into(session, writing, chunks)


@contextmanager
def waited(connection: Connection) -> Iterator[Callable[[Iterator[pa.Table]], Iterator[pa.Table]]]:
    """Abort the connection of a silent server within the block. The yielded function renews the timeout per chunk."""
    if not _is_postgresql(connection):
        yield lambda chunks: chunks  # the clients of other databases have their own timeout
        return
    with patience(connection.connection.driver_connection) as watching:
        yield watching.renewed_by


def compacted(rows: pa.Table, writing: Writing) -> pa.Table:
    """Reduce a chunk with keys to the last operation of each key, in the order of the keys."""
    if writing.keys:
        rows = row_rules.net(rows, writing.table_keys)
    return rows.drop_columns([ORDER]) if ORDER in rows.column_names else rows


def _is_postgresql(connection: Connection) -> bool:
    return DIALECTS[connection.dialect.name] == "postgresql"


def refused_row(
    connection: Connection, writing: Writing, chunks: Iterable[pa.Table], address: DatabaseAddress
) -> str | None:
    """Return the first refused row and the reason, for a message; ``None`` if no row is refused or another error
    occurs."""
    connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
    for chunk in chunks:
        found = _first(connection, writing, chunk)
        if found is not None:
            position, error = found
            row = row_at(chunk, position)
            named = {name: row[name] for name in writing.table_keys} or row
            return f"row {described(named)}: {reason(error, address)}" if is_refusal(error) else None
    return None


def _first(connection: Connection, writing: Writing, chunk: pa.Table) -> tuple[int, BaseException] | None:
    """Return the position of the first refused row, and the error; the rows before it are applied."""
    error = _refusal(connection, writing, chunk)
    if error is None or chunk.num_rows == 1 or not is_refusal(error):
        return None if error is None else (0, error)
    half = chunk.num_rows // 2
    found = _first(connection, writing, chunk.slice(0, half))
    if found is not None:
        return found
    found = _first(connection, writing, chunk.slice(half))
    return None if found is None else (half + found[0], found[1])


def _refusal(connection: Connection, writing: Writing, chunk: pa.Table) -> BaseException | None:
    savepoint: Any = connection.begin_nested()
    try:
        connection.exec_driver_sql("DROP TABLE IF EXISTS pg_temp._epochal_rows")
        apply(connection, writing, iter([chunk]))
    except Exception as error:
        if not is_database_error(error):
            raise
        savepoint.rollback()
        return error
    savepoint.commit()
    return None
