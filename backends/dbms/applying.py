"""Chunks of rows into the table, in an open transaction of whichever database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from epochal.backends.dbms import rows as row_rules
from epochal.backends.dbms.address import DIALECTS
from epochal.backends.dbms.patience import patience
from epochal.backends.dbms.portable import PortableTable
from epochal.backends.dbms.writing import ORDER, Writing


def apply(connection: Connection, writing: Writing, chunks: Iterator[pa.Table]) -> None:
    """Insert the chunks or, with keys, apply them one after the other: each has one row for each key."""
    if not _is_postgresql(connection):
        PortableTable(connection, writing).apply(connection, chunks)
        return
    from epochal.backends.dbms import postgresql  # its driver is an extra

    session: Any = connection.connection.driver_connection
    into = postgresql.merge if writing.keys else postgresql.insert
    into(session, writing, chunks)


@contextmanager
def waited(connection: Connection) -> Iterator[Callable[[Iterator[pa.Table]], Iterator[pa.Table]]]:
    """Within the block a server that has gone silent is given up; what it gives notes that it was heard."""
    if not _is_postgresql(connection):
        yield lambda chunks: chunks  # the others' clients have a limit of their own
        return
    with patience(connection.connection.driver_connection) as watching:
        yield watching.renewed_by


def compacted(rows: pa.Table, writing: Writing) -> pa.Table:
    """A chunk: with keys the last operation of each, in the order of the keys."""
    if writing.keys:
        rows = row_rules.net(rows, writing.table_keys)
    return rows.drop_columns([ORDER]) if ORDER in rows.column_names else rows


def _is_postgresql(connection: Connection) -> bool:
    return DIALECTS[connection.dialect.name] == "postgresql"
