"""Steps of online migrations, which do not block other transactions and keep the previous version working.

A migration *expands* the schema: it adds tables, columns that are nullable or have a default, constraints that existing
rows satisfy, and indexes. A migration that *contracts* it (drops, renames, forbids null) follows in a later version and
declares ``oldest_reader = "00NN"``, the revision of the oldest version that can use its tables.

On PostgreSQL the runner (``service/catalog/migration.py``) gives each migration its own transaction with a short
``lock_timeout``, because an ALTER that waits for a lock blocks all later transactions on the table. Long steps follow
afterwards, under locks that block neither readers nor writers: constraints are added NOT VALID and validated by
:func:`finish`; indexes are declared as ``indexes = (Index(..),)`` and built CONCURRENTLY.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from alembic import op

LOCK_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True)
class Index:
    """``where``: SQL condition of a partial index, in the syntax of both databases."""

    name: str
    table: str
    columns: Sequence[str]
    unique: bool = False
    where: str | None = None

    def create(self, concurrently: bool) -> str:
        how = " CONCURRENTLY" if concurrently else ""
        statement = f"CREATE{' UNIQUE' if self.unique else ''} INDEX{how} IF NOT EXISTS {self.name}"
        condition = "" if self.where is None else f" WHERE {self.where}"
        return f"{statement} ON {self.table} ({', '.join(self.columns)}){condition}"


def bound_lock_waits(connection: sa.Connection) -> None:
    """Limit lock waits of this transaction, on PostgreSQL. The runner retries after a timeout."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(LOCK_TIMEOUT_SECONDS * 1000)}")


def add_check(table: str, name: str, condition: str) -> None:
    """Add a check constraint. :func:`finish` validates the existing rows."""
    with op.batch_alter_table(table) as altered:
        altered.create_check_constraint(op.f(name), condition, postgresql_not_valid=True)


def add_foreign_key(table: str, name: str, columns: Sequence[str], other: str, other_columns: Sequence[str]) -> None:
    """Add a foreign key. :func:`finish` validates the existing rows."""
    with op.batch_alter_table(table) as altered:
        altered.create_foreign_key(op.f(name), other, list(columns), list(other_columns), postgresql_not_valid=True)


def finish(connection: sa.Connection, indexes: Iterable[Index]) -> None:
    """Validate constraints that were added NOT VALID, and build missing indexes.

    Idempotent, also after an interruption; the caller excludes concurrent calls. ``connection``: on PostgreSQL, one in
    autocommit mode.
    """
    if connection.dialect.name != "postgresql":
        for index in indexes:
            connection.exec_driver_sql(index.create(concurrently=False))
        return
    for table, constraint in connection.exec_driver_sql(_NOT_VALID).all():
        connection.exec_driver_sql(f'ALTER TABLE {table} VALIDATE CONSTRAINT "{constraint}"')
    states = {row.relname: row.indisvalid for row in connection.exec_driver_sql(_INDEXES)}
    for index in indexes:
        if states.get(index.name) is False:  # its build was interrupted
            connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {index.name}")
        if not states.get(index.name):
            connection.exec_driver_sql(index.create(concurrently=True))


_NOT_VALID = """
SELECT conrelid::regclass::text, conname FROM pg_constraint
WHERE NOT convalidated AND contype IN ('c', 'f') AND connamespace = current_schema()::regnamespace ORDER BY conname
"""
_INDEXES = """
SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE relnamespace = current_schema()::regnamespace
"""
