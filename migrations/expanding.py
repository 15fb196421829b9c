"""Steps of migrations that keep nobody waiting, and after which control planes one version older still work.

A migration *expands*: it adds tables, columns that may be null or have a default, constraints that what is there keeps
to already, indexes. One that *contracts* (drops, renames, forbids null) comes a version later, and says
``oldest_reader = "00NN"``: the revision of the oldest version that can work on its tables.

On PostgreSQL the runner (``service/catalog/migration.py``) gives each migration a transaction of its own, and a short
``lock_timeout``: an ALTER that waits for a lock keeps everybody waiting who comes after it. What takes long is done
after it, under locks that exclude neither readers nor writers: constraints are added NOT VALID here and validated by
:func:`finish`; indexes are no statements but the migration's ``indexes = (Index(..),)``, built CONCURRENTLY there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from alembic import op

LOCK_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True)
class Index:
    """``where``: SQL that both databases understand; of rows for which it holds only."""

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
    """Until the transaction ends, on PostgreSQL: who waits longer for a lock gives up, and is tried again."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(LOCK_TIMEOUT_SECONDS * 1000)}")


def add_check(table: str, name: str, condition: str) -> None:
    """What is there is looked at by :func:`finish`; until then it is not known whether all of it keeps to it."""
    with op.batch_alter_table(table) as altered:
        altered.create_check_constraint(op.f(name), condition, postgresql_not_valid=True)


def add_foreign_key(table: str, name: str, columns: Sequence[str], other: str, other_columns: Sequence[str]) -> None:
    """As :func:`add_check`."""
    with op.batch_alter_table(table) as altered:
        altered.create_foreign_key(op.f(name), other, list(columns), list(other_columns), postgresql_not_valid=True)


def finish(connection: sa.Connection, indexes: Iterable[Index]) -> None:
    """Validate what was added NOT VALID, and build the indexes that are not there.

    It may have been cut off anywhere before, and is safe to repeat; the caller sees to it that nobody else does it.
    ``connection``: on PostgreSQL one without a transaction.
    """
    if connection.dialect.name != "postgresql":
        for index in indexes:
            connection.exec_driver_sql(index.create(concurrently=False))
        return
    for table, constraint in connection.exec_driver_sql(_NOT_VALID).all():
        connection.exec_driver_sql(f'ALTER TABLE {table} VALIDATE CONSTRAINT "{constraint}"')
    states = {row.relname: row.indisvalid for row in connection.exec_driver_sql(_INDEXES)}
    for index in indexes:
        if states.get(index.name) is False:  # one whose building was cut off
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
