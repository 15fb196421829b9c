"""The fence: one row per branch and sink in the target database, moved in the transaction that applies an epoch.

docs/sinks/dbms.md says what a database administrator sees of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table
from sqlalchemy.dialects import mysql

from epochal.backends.dbms.writing import Writing
from epochal.backends.earlier_manifests import manifests_of
from epochal.contracts.backend import SinkPlace
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.errors import Fenced, SinkAhead, SinkError
from epochal.snapshots.manifest import Manifest

TABLE = "_epochal_fence"
SHARD = 0
"""A DBMS sink has one shard: its epochs are one transaction each."""
LONGEST_NAME = 150


class Fence:
    """The fence of one sink. ``schema``: where its table is, ``None`` for the connection's own."""

    def __init__(self, sink: str, schema: str | None, place: str) -> None:
        self._sink = sink
        self._place = place
        exact = mysql.VARCHAR(LONGEST_NAME, charset="utf8mb4", collation="utf8mb4_bin")
        name = String(LONGEST_NAME).with_variant(exact, "mysql", "mariadb")
        self.table = Table(
            TABLE,
            MetaData(),
            Column("branch", name, primary_key=True),
            Column("sink", name, primary_key=True),
            Column("shard", Integer, primary_key=True, autoincrement=False),
            Column("epoch", BigInteger, nullable=False),
            Column("attempt", BigInteger, nullable=False),
            schema=schema,
            mysql_engine="InnoDB",
        )

    def create(self, connection: Connection) -> None:
        """Make the table. There already is done."""
        if not sa.inspect(connection).has_table(TABLE, schema=self.table.schema):
            connection.execute(sa.schema.CreateTable(self.table, if_not_exists=True))

    def take_over(self, connection: Connection, epoch: EpochScope, place: SinkPlace) -> None:
        """R1: the row is this attempt's. ``epoch.key`` is the latest prepared epoch.

        Raises ``Fenced`` when a later attempt has it, ``SinkError`` when it is lost, ``SinkAhead``.
        """
        row = self._row(connection, epoch)
        if row is None:
            self._begin(connection, epoch, place)
            return
        taken = self._update(connection, epoch, self.table.c.attempt < epoch.attempt, {"attempt": epoch.attempt})
        attempt, at = row
        if not taken:
            attempt, at = self._row(connection, epoch) or row
            if attempt > epoch.attempt:
                raise self._fenced(epoch, attempt)
        if at > epoch.epoch:
            raise SinkAhead.of(f"Sink {self._sink!r} at {self._place}", at, epoch.application, epoch.epoch)
        if at < epoch.epoch and _is_without(epoch.key, place):
            # The sink was not part of the pipeline for a while: no epoch up to here is still to be applied.
            self._update(connection, epoch, sa.true(), {"epoch": epoch.epoch})

    def shown(self, connection: Connection, epoch: EpochScope) -> int:
        """The latest epoch that was applied."""
        if not sa.inspect(connection).has_table(TABLE, schema=self.table.schema):
            return 0
        row = self._row(connection, epoch)
        return 0 if row is None else row[1]

    def advance(self, connection: Connection, epoch: EpochScope) -> bool:
        """E5.1: the compare-and-set. ``False``: the epoch has been applied before. Raises ``Fenced``, ``SinkError``."""
        row = self.table.c
        expected = epoch.parent_in_branch or 0
        follows = (row.epoch == expected) & (row.attempt == epoch.attempt)
        if self._update(connection, epoch, follows, {"epoch": epoch.epoch}):
            return True
        found = self._row(connection, epoch)
        if found is None:
            raise self._lost(epoch.key)
        attempt, at = found
        if attempt > epoch.attempt:
            raise self._fenced(epoch, attempt)
        if at >= epoch.epoch:
            return False
        raise SinkError(
            f"Sink {self._sink!r}: its fence at {self._place} stands at epoch {at}, attempt {attempt}; epoch "
            f"{epoch.epoch} of attempt {epoch.attempt} follows on epoch {expected}. The database was put back to an "
            f"older state, or row ({epoch.branch}, {self._sink}) of {TABLE} was changed. Restore both together."
        )

    def check(self, connection: Connection, epoch: EpochScope) -> None:
        """Within a task's transaction: whether its epoch may still be written. Holds take-overs up until it ends.

        Raises ``Fenced`` when a later attempt has the row, ``SinkError`` when a later epoch is there, or the row lost.
        """
        row = self.table.c
        query = sa.select(row.attempt, row.epoch).where(self._mine(epoch)).with_for_update(read=True)
        found = connection.execute(query).one_or_none()
        if found is None:
            raise self._lost(epoch.key)
        if found.attempt > epoch.attempt:
            raise self._fenced(epoch, found.attempt)
        if found.epoch >= epoch.epoch:
            raise SinkError(
                f"Sink {self._sink!r}: a task of epoch {epoch.epoch} was late: {self._place} is at epoch {found.epoch}."
            )

    def others(self, connection: Connection, epoch: EpochScope) -> dict[str, int]:
        """The latest applied epoch of every other branch with a sink of this name."""
        row = self.table.c
        query = sa.select(row.branch, row.epoch).where(row.sink == self._sink, row.branch != epoch.branch)
        return {str(branch): int(applied) for branch, applied in connection.execute(query).all()}

    def holder(self, connection: Connection, epoch: EpochScope) -> int | None:
        """PostgreSQL: the process that holds the row's lock, if any."""
        name = connection.dialect.identifier_preparer.format_table(self.table)
        found = connection.exec_driver_sql(
            f"SELECT l.pid FROM {name} f JOIN pg_locks l ON l.transactionid::text = f.xmax::text "
            "WHERE f.branch = %(branch)s AND f.sink = %(sink)s AND l.locktype = 'transactionid' "
            "AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()",
            {"branch": epoch.branch, "sink": self._sink},
        )
        return found.scalar()

    def _begin(self, connection: Connection, epoch: EpochScope, place: SinkPlace) -> None:
        """No row: the sink is new, unless the latest epoch had it."""
        if epoch.epoch > 0 and _names_sink(epoch.key, place):
            raise self._lost(epoch.key)
        key = {"branch": epoch.branch, "sink": self._sink, "shard": SHARD}
        connection.execute(self.table.insert().values(**key, epoch=epoch.epoch, attempt=epoch.attempt))

    def _row(self, connection: Connection, epoch: EpochScope) -> tuple[int, int] | None:
        query = sa.select(self.table.c.attempt, self.table.c.epoch).where(self._mine(epoch))
        found = connection.execute(query).one_or_none()
        return (found.attempt, found.epoch) if found else None

    def _update(
        self, connection: Connection, epoch: EpochScope, when: sa.ColumnElement[bool], to: dict[str, int]
    ) -> bool:
        statement = self.table.update().where(self._mine(epoch), when).values(to)
        return connection.execute(statement).rowcount == 1

    def _mine(self, epoch: EpochScope) -> sa.ColumnElement[bool]:
        row = self.table.c
        return (row.branch == epoch.branch) & (row.sink == self._sink) & (row.shard == SHARD)

    def _fenced(self, epoch: EpochScope, attempt: int) -> Fenced:
        return Fenced(
            f"Sink {self._sink!r}: attempt {attempt} has taken over {self._place}; attempt {epoch.attempt} must stop."
        )

    def _lost(self, key: EpochKey) -> SinkError:
        return SinkError(
            f"Sink {self._sink!r}: {TABLE} at {self._place} has lost the row of branch {key.branch}: the database was "
            "made anew, or the row was deleted. Restore the database, or name another sink, which begins with what "
            "comes from now on."
        )


def check_not_repeated(
    connection: Connection, epoch: EpochScope, sink: str, writing: Writing, others: Mapping[str, int], table: str
) -> None:
    """Whether a run that begins with empty state would append what an earlier run of its application has appended.

    ``others``: the latest epoch of each other branch that ``table``, the sink's own, knows; ``epoch``: as in R1. Raises
    ``SinkError`` with the ways out. A table with keys takes the same rows again, and an empty one was cleared.
    """
    if writing.keys or epoch.epoch > 0 or epoch.parent is not None:
        return
    branch_of_application = re.compile(re.escape(epoch.application) + "-[0-9a-f]{8}")
    earlier = [branch for branch, applied in others.items() if applied and branch_of_application.fullmatch(branch)]
    if not earlier:
        return
    target = sa.table(writing.table_name, schema=writing.schema_name)
    if connection.execute(sa.select(sa.literal(1)).select_from(target).limit(1)).first() is None:
        return
    table = ".".join(filter(None, (writing.schema_name, table)))
    named = ", ".join(f"'{branch}'" for branch in sorted(earlier))
    raise SinkError(
        f"Sink {sink!r} would append to table {writing.table} a second time: an earlier run of {epoch.application!r} "
        f"(branch {', '.join(sorted(earlier))}) has written rows, and this run begins with empty state, so it reads "
        "its sources from their beginning. To continue the earlier run, keep its state: "
        "`epochal run --directory DIR`, or start the existing application. To start over, empty the table: DELETE FROM "
        f"{writing.table}. To keep the rows and append again, forget the earlier run: DELETE FROM {table} WHERE sink = "
        f"'{sink}' AND branch IN ({named}). Or name keys, so that rows are replaced."
    )


def _manifests(key: EpochKey, place: SinkPlace) -> list[Manifest]:
    return [] if place.store is None or key.epoch == 0 else manifests_of(place.store, key)


def _names_sink(key: EpochKey, place: SinkPlace) -> bool:
    return any(place.sink in manifest.sinks for manifest in _manifests(key, place))


def _is_without(key: EpochKey, place: SinkPlace) -> bool:
    """Whether the epoch is known to have had no such sink."""
    manifests = _manifests(key, place)
    return bool(manifests) and all(place.sink not in manifest.sinks for manifest in manifests)
