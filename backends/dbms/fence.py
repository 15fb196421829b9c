"""The fence: one row per branch and sink in the target database, moved in the transaction that applies an epoch.

docs/reference/sinks/dbms.md describes the table for database administrators.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table
from sqlalchemy.dialects import mysql

from epochal.backends.dbms.writing import Writing
from epochal.backends.earlier_manifests import manifests_of
from epochal.contracts.backend import SinkPlace
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.errors import Fenced, SinkAhead, SinkError
from epochal.snapshots.manifest import Manifest

log = logging.getLogger(__name__)

TABLE = "_epochal_fence"
SHARD = 0
"""A DBMS sink has one shard: its epochs are one transaction each."""
LONGEST_NAME = 150
LONGEST_TARGET = 255
_SHOWN_MARKERS = 10


@dataclass(frozen=True)
class Marker:
    """The latest epoch that a sink of a branch has applied to a table."""

    branch: str
    sink: str
    epoch: int


class Fence:
    """The fence of one sink that writes to ``writing``'s table; the fence table is in the same schema."""

    def __init__(self, sink: str, writing: Writing, place: str) -> None:
        self._sink = sink
        self._place = place
        self._target = writing.table_name
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
            Column("target", String(LONGEST_TARGET), nullable=False),
            schema=writing.schema_name,
            mysql_engine="InnoDB",
        )

    def create(self, connection: Connection) -> None:
        """Create the fence table if it does not exist."""
        if not sa.inspect(connection).has_table(TABLE, schema=self.table.schema):
            connection.execute(sa.schema.CreateTable(self.table, if_not_exists=True))

    def take_over(self, connection: Connection, epoch: EpochScope, place: SinkPlace) -> None:
        """R1: assign the row to this attempt. ``epoch.key`` is the latest prepared epoch.

        Raises ``Fenced`` when a later attempt owns the row, ``SinkError`` when the row is lost, ``SinkAhead``.
        """
        row = self._row(connection, epoch)
        if row is None:
            self._begin(connection, epoch, place)
            return
        taken = self._update(connection, epoch, self.table.c.attempt < epoch.attempt, self._held_by(epoch))
        attempt, at = row
        if not taken:
            attempt, at = self._row(connection, epoch) or row
            if attempt > epoch.attempt:
                raise self._fenced(epoch, attempt)
        if at > epoch.epoch:
            raise SinkAhead.of(f"Sink {self._sink!r} at {self._place}", at, epoch.application, epoch.epoch)
        if at < epoch.epoch and _is_without(epoch.key, place):
            # The pipeline was temporarily without the sink: no epoch up to this one remains to be applied.
            self._update(connection, epoch, sa.true(), {"epoch": epoch.epoch})

    def shown(self, connection: Connection, epoch: EpochScope) -> int:
        """Return the latest applied epoch."""
        if not sa.inspect(connection).has_table(TABLE, schema=self.table.schema):
            return 0
        row = self._row(connection, epoch)
        return 0 if row is None else row[1]

    def advance(self, connection: Connection, epoch: EpochScope) -> bool:
        """E5.1: the compare-and-set. ``False``: the epoch was applied earlier. Raises ``Fenced``, ``SinkError``."""
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
            f"Sink {self._sink!r}: its fence at {self._place} is at epoch {at}, attempt {attempt}; epoch "
            f"{epoch.epoch} of attempt {epoch.attempt} follows epoch {expected}. The database was restored to an "
            f"older state, or row ({epoch.branch}, {self._sink}) of {TABLE} was changed. Restore both together."
        )

    def check(self, connection: Connection, epoch: EpochScope) -> None:
        """Check, within a task's transaction, that its epoch may still be written. Blocks take-overs until it ends.

        Raises ``Fenced`` when a later attempt owns the row, ``SinkError`` after a later epoch, or when the row is lost.
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
                f"Sink {self._sink!r}: a task of epoch {epoch.epoch} is obsolete: {self._place} is already at epoch "
                f"{found.epoch}."
            )

    def others(self, connection: Connection, epoch: EpochScope) -> list[Marker]:
        """Return the markers of sinks of other branches that write to the same table."""
        row = self.table.c
        query = sa.select(row.branch, row.sink, row.epoch).where(row.target == self._target, row.branch != epoch.branch)
        return [Marker(str(branch), str(sink), int(applied)) for branch, sink, applied in connection.execute(query)]

    def holder(self, connection: Connection, epoch: EpochScope) -> int | None:
        """PostgreSQL: return the process that holds the row's lock, if any."""
        name = connection.dialect.identifier_preparer.format_table(self.table)
        found = connection.exec_driver_sql(
            f"SELECT l.pid FROM {name} f JOIN pg_locks l ON l.transactionid::text = f.xmax::text "
            "WHERE f.branch = %(branch)s AND f.sink = %(sink)s AND l.locktype = 'transactionid' "
            "AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()",
            {"branch": epoch.branch, "sink": self._sink},
        )
        return found.scalar()

    def _begin(self, connection: Connection, epoch: EpochScope, place: SinkPlace) -> None:
        """Insert the missing row of a new sink; if the latest epoch had the sink, the row is lost."""
        if epoch.epoch > 0 and _names_sink(epoch.key, place):
            raise self._lost(epoch.key)
        key = {"branch": epoch.branch, "sink": self._sink, "shard": SHARD}
        connection.execute(self.table.insert().values(**key, epoch=epoch.epoch, **self._held_by(epoch)))

    def _held_by(self, epoch: EpochScope) -> dict[str, Any]:
        return {"attempt": epoch.attempt, "target": self._target}

    def _row(self, connection: Connection, epoch: EpochScope) -> tuple[int, int] | None:
        query = sa.select(self.table.c.attempt, self.table.c.epoch).where(self._mine(epoch))
        found = connection.execute(query).one_or_none()
        return (found.attempt, found.epoch) if found else None

    def _update(
        self, connection: Connection, epoch: EpochScope, when: sa.ColumnElement[bool], to: dict[str, Any]
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
            "recreated, or the row was deleted. Restore the database, or give the sink another name; it then receives "
            "only the epochs that follow."
        )


def check_not_repeated(
    connection: Connection, epoch: EpochScope, sink: str, writing: Writing, others: Sequence[Marker], table: str
) -> None:
    """Check that a run with empty initial state does not append the rows of an earlier run twice.

    ``others``: the markers of other branches for this table, in ``table``; ``epoch``: as in R1. Raises ``SinkError``
    with the remedies for an earlier run of the same application, and warns of other applications, which may have read
    other sources. A table with keys accepts the same rows again, and an empty one was cleared.
    """
    if writing.keys or epoch.epoch > 0 or epoch.parent is not None:
        return
    markers = [marker for marker in others if marker.epoch]
    if not markers:
        return
    target = sa.table(writing.table_name, schema=writing.schema_name)
    if connection.execute(sa.select(sa.literal(1)).select_from(target).limit(1)).first() is None:
        return
    table = ".".join(filter(None, (writing.schema_name, table)))
    branch_of_application = re.compile(re.escape(epoch.application) + "-[0-9a-f]{8}")
    earlier = sorted({each.branch for each in markers if branch_of_application.fullmatch(each.branch)})
    if not earlier:
        _warn_of_others(epoch, sink, writing, markers, table)
        return
    named = ", ".join(f"'{branch}'" for branch in earlier)
    raise SinkError(
        f"Sink {sink!r} would append to table {writing.table} a second time: an earlier run of {epoch.application!r} "
        f"(branch {', '.join(earlier)}) has written rows, and this run begins with empty state, so it reads "
        "its sources from their beginning. To continue the earlier run, keep its state: "
        "`epochal run --directory DIR`, or start the existing application. To start over, empty the table: DELETE FROM "
        f"{writing.table}. To keep the rows and append again, forget the earlier run: DELETE FROM {table} WHERE "
        f"target = '{writing.table_name}' AND branch IN ({named}). Or name keys, so that rows are replaced."
    )


def _warn_of_others(epoch: EpochScope, sink: str, writing: Writing, markers: Sequence[Marker], table: str) -> None:
    shown = [f"branch {each.branch}, sink {each.sink!r}, to epoch {each.epoch}" for each in markers[:_SHOWN_MARKERS]]
    others = f"; and {len(markers) - len(shown)} others" if len(markers) > len(shown) else ""
    log.warning(
        "Sink %r of %r appends to table %s, which has rows of other applications (%s%s). If one of them was an earlier "
        "run over the same sources under another name, its rows are now written twice: stop this run, and empty the "
        "table or continue the earlier application. To end this warning after that application has been deleted, "
        "delete its rows in %s.",
        sink,
        epoch.application,
        writing.table,
        "; ".join(shown),
        others,
        table,
    )


def _manifests(key: EpochKey, place: SinkPlace) -> list[Manifest]:
    return [] if place.store is None or key.epoch == 0 else manifests_of(place.store, key)


def _names_sink(key: EpochKey, place: SinkPlace) -> bool:
    return any(place.sink in manifest.sinks for manifest in _manifests(key, place))


def _is_without(key: EpochKey, place: SinkPlace) -> bool:
    """Return whether the epoch is known to have had no such sink."""
    manifests = _manifests(key, place)
    return bool(manifests) and all(place.sink not in manifest.sinks for manifest in manifests)
