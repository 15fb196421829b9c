"""The ledger: a row inside each prepared transaction, which shows later whether it was committed.

docs/reference/sinks/postgresql-two-phase.md describes the table for database administrators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from psycopg import Connection, sql

from epochal.backends.dbms.fence import LONGEST_TARGET, Marker
from epochal.backends.dbms.writing import Writing
from epochal.contracts.identity import EpochScope, TaskScope

TABLE = "_epochal_ledger"
KEPT_EPOCHS = 1_000
"""Rows of older epochs are removed: far more than can be prepared and not committed."""


class Ledger:
    """The ledger beside the table of ``writing``, in the same schema."""

    def __init__(self, writing: Writing) -> None:
        self._schema = writing.schema_name
        self._target = writing.table_name
        self._name = sql.Identifier(*filter(None, (self._schema, TABLE)))

    def create(self, connection: sa.Connection) -> None:
        """Create the ledger table if it does not exist."""
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
            sa.Column("target", sa.String(LONGEST_TARGET), nullable=False),
            schema=self._schema,
        )
        connection.execute(sa.schema.CreateTable(table, if_not_exists=True))

    def note(self, connection: Connection[Any], name: TransactionName) -> None:
        """Write the row, in the open transaction."""
        statement = sql.SQL("INSERT INTO {} (branch, sink, epoch, shard, gid, target) VALUES (%s, %s, %s, %s, %s, %s)")
        row = (name.branch, name.sink, name.epoch, name.subtask, name.gid, self._target)
        connection.execute(statement.format(self._name), row)

    def has(self, connection: Connection[Any], name: TransactionName) -> bool:
        """Return whether the transaction was committed."""
        statement = sql.SQL("SELECT 1 FROM {} WHERE branch = %s AND sink = %s AND epoch = %s AND gid = %s")
        found = connection.execute(statement.format(self._name), (name.branch, name.sink, name.epoch, name.gid))
        return found.fetchone() is not None

    def latest(self, connection: sa.Connection, epoch: EpochScope, sink: str) -> int:
        """Return the branch's latest epoch with a committed transaction; 0 if none, or if the table is missing."""
        if not sa.inspect(connection).has_table(TABLE, schema=self._schema):
            return 0
        table = sa.table(TABLE, sa.column("branch"), sa.column("sink"), sa.column("epoch"), schema=self._schema)
        query = sa.select(sa.func.max(table.c.epoch)).where(table.c.branch == epoch.branch, table.c.sink == sink)
        return int(connection.execute(query).scalar() or 0)

    def others(self, connection: sa.Connection, epoch: EpochScope) -> list[Marker]:
        """The sinks of other branches that have the same table, with the latest epoch that each has committed."""
        names = ("branch", "sink", "epoch", "target")
        row = sa.table(TABLE, *map(sa.column, names), schema=self._schema).c
        latest = sa.select(row.branch, row.sink, sa.func.max(row.epoch)).group_by(row.branch, row.sink)
        found = connection.execute(latest.where(row.branch != epoch.branch, row.target == self._target))
        return [Marker(str(branch), str(sink), int(committed)) for branch, sink, committed in found]

    def forget(self, connection: Connection[Any], epoch: EpochScope, sink: str) -> None:
        """Remove the rows of epochs older than ``KEPT_EPOCHS``."""
        statement = sql.SQL("DELETE FROM {} WHERE branch = %s AND sink = %s AND epoch < %s")
        connection.execute(statement.format(self._name), (epoch.branch, sink, epoch.epoch - KEPT_EPOCHS))


PREFIX = "epochal"


@dataclass(frozen=True)
class TransactionName:
    """``epochal:{branch}:{sink}:{epoch}:{attempt}:{subtask}:{unique}``, at most 199 bytes."""

    branch: str
    sink: str
    epoch: int
    attempt: int
    subtask: int
    unique: str

    @classmethod
    def new(cls, task: TaskScope) -> TransactionName:
        epoch = task.epoch
        return cls(epoch.branch, task.owner, epoch.epoch, epoch.attempt, task.subtask, uuid4().hex[:12])

    @classmethod
    def parse(cls, gid: str) -> TransactionName | None:
        """Parse a name; ``None`` for a transaction of other software."""
        parts = gid.split(":")
        if len(parts) != 7 or parts[0] != PREFIX or not all(part.isdigit() for part in parts[3:6]):
            return None
        return cls(parts[1], parts[2], int(parts[3]), int(parts[4]), int(parts[5]), parts[6])

    @property
    def gid(self) -> str:
        parts = (PREFIX, self.branch, self.sink, self.epoch, self.attempt, self.subtask, self.unique)
        return ":".join(map(str, parts))
