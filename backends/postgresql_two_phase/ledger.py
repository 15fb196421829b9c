"""The ledger: a row inside each prepared transaction, which shows later whether it was committed.

docs/sinks/postgresql-two-phase.md says what a database administrator sees of it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from psycopg import Connection, sql

from epochal.backends.postgresql_two_phase.names import TransactionName
from epochal.contracts.identity import EpochScope

TABLE = "_epochal_ledger"
KEPT_EPOCHS = 1_000
"""Rows of older epochs are removed: far more than can be prepared and not committed."""


class Ledger:
    """The ledger beside one table. ``schema``: where it is, ``None`` for the connection's own."""

    def __init__(self, schema: str | None) -> None:
        self._name = sql.Identifier(*filter(None, (schema, TABLE)))
        self._schema = schema

    def create(self, connection: sa.Connection) -> None:
        """Make the table. There already is done."""
        if sa.inspect(connection).has_table(TABLE, schema=self._schema):
            return
        table = sa.Table(
            TABLE,
            sa.MetaData(),
            sa.Column("branch", sa.String(200), primary_key=True),
            sa.Column("sink", sa.String(200), primary_key=True),
            sa.Column("epoch", sa.BigInteger, primary_key=True),
            sa.Column("shard", sa.Integer, primary_key=True),
            sa.Column("gid", sa.String(200), primary_key=True),
            schema=self._schema,
        )
        connection.execute(sa.schema.CreateTable(table, if_not_exists=True))

    def note(self, connection: Connection[Any], name: TransactionName) -> None:
        """Write the row, in the open transaction."""
        statement = sql.SQL("INSERT INTO {} (branch, sink, epoch, shard, gid) VALUES (%s, %s, %s, %s, %s)")
        connection.execute(statement.format(self._name), (name.branch, name.sink, name.epoch, name.subtask, name.gid))

    def has(self, connection: Connection[Any], name: TransactionName) -> bool:
        """Whether the transaction was committed."""
        statement = sql.SQL("SELECT 1 FROM {} WHERE branch = %s AND sink = %s AND epoch = %s AND gid = %s")
        found = connection.execute(statement.format(self._name), (name.branch, name.sink, name.epoch, name.gid))
        return found.fetchone() is not None

    def latest(self, connection: sa.Connection, epoch: EpochScope, sink: str) -> int:
        """The latest epoch of the branch of which a transaction was committed; 0: none, or the table is not there."""
        if not sa.inspect(connection).has_table(TABLE, schema=self._schema):
            return 0
        table = sa.table(TABLE, sa.column("branch"), sa.column("sink"), sa.column("epoch"), schema=self._schema)
        query = sa.select(sa.func.max(table.c.epoch)).where(table.c.branch == epoch.branch, table.c.sink == sink)
        return int(connection.execute(query).scalar() or 0)

    def others(self, connection: sa.Connection, epoch: EpochScope, sink: str) -> dict[str, int]:
        """The latest committed epoch of every other branch with a sink of this name."""
        table = sa.table(TABLE, sa.column("branch"), sa.column("sink"), sa.column("epoch"), schema=self._schema)
        latest = sa.select(table.c.branch, sa.func.max(table.c.epoch)).group_by(table.c.branch)
        found = connection.execute(latest.where(table.c.branch != epoch.branch, table.c.sink == sink))
        return {str(branch): int(committed) for branch, committed in found.all()}

    def forget(self, connection: Connection[Any], epoch: EpochScope, sink: str) -> None:
        """Remove the rows of epochs that nobody will ask about again."""
        statement = sql.SQL("DELETE FROM {} WHERE branch = %s AND sink = %s AND epoch < %s")
        connection.execute(statement.format(self._name), (epoch.branch, sink, epoch.epoch - KEPT_EPOCHS))
