"""After the decision: finds the row that PostgreSQL refuses.

Rows go to PostgreSQL by COPY and by one statement for many of them. To name the one that a constraint or a trigger
refuses, the chunks are applied again in a transaction that is rolled back, and halved until one row is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from epochal.backends.dbms.address import DatabaseAddress
from epochal.backends.dbms.applying import apply
from epochal.backends.dbms.failures import is_database_error, is_refusal, reason
from epochal.backends.dbms.rows import described
from epochal.backends.dbms.writing import Writing
from epochal.backends.text_columns import row_at


def refused_row(
    connection: Connection, writing: Writing, chunks: Iterable[pa.Table], address: DatabaseAddress
) -> str | None:
    """The first refused row, and why, for a message; ``None`` when each row is taken, or something else fails."""
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
    """The position of the first row that is refused; the rows before it are applied."""
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
