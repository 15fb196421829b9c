"""The fence: a row per branch, sink and shard in the target database, moved in the transactions that apply an epoch.

A row at an epoch states: all rows that belong to its shard, up to this epoch, are in the table. An epoch without rows
of a shard moves the shard's row, too, so that at the end of each commit all rows of the sink are at the same epoch. A
row is created at the start of an attempt with more shards than before, at the epoch of shard 0: no decided epoch has
rows for it. No row is deleted when the number of shards falls.

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
from epochal.backends.write_ahead_log import shards_of
from epochal.contracts.backend import SinkPlace
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.errors import Fenced, SinkAhead, SinkError
from epochal.snapshots.manifest import Manifest

log = logging.getLogger(__name__)

TABLE = "_epochal_fence"
FIRST_SHARD = 0
"""The shard that every sink has."""
LONGEST_NAME = 150
LONGEST_TARGET = 255
_SHOWN_MARKERS = 10


@dataclass(frozen=True)
class Marker:
    """The latest epoch that a sink of a branch has applied to a table."""

    branch: str
    sink: str
    epoch: int


@dataclass(frozen=True)
class _Row:
    attempt: int
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

    def take_over(self, connection: Connection, epoch: EpochScope, place: SinkPlace, shards: int) -> int:
        """R1: assign all rows of the sink to this attempt, and create those of new shards. ``epoch.key`` is the latest
        prepared epoch. Returns the number of rows, which can exceed ``shards``.

        Raises ``Fenced`` when a later attempt owns a row, ``SinkError`` when a row is lost, ``SinkAhead``.
        """
        rows = self._rows(connection, epoch, lock=True)
        for shard, row in rows.items():
            self._take(connection, epoch, place, shard, row)
        number = max(shards, max(rows, default=FIRST_SHARD) + 1)
        missing = [shard for shard in range(number) if shard not in rows]
        if missing:
            if missing[0] < _logged_shards(epoch.key, place):
                raise self._lost(epoch.key)
            new = FIRST_SHARD not in rows or _is_without(epoch.key, place)
            at = epoch.epoch if new else rows[FIRST_SHARD].epoch
            for shard in missing:
                key = {"branch": epoch.branch, "sink": self._sink, "shard": shard}
                connection.execute(self.table.insert().values(**key, epoch=at, **self._held_by(epoch)))
        return number

    def shards(self, connection: Connection, epoch: EpochScope) -> int:
        """Return the number of rows of the sink."""
        return max(self._rows(connection, epoch), default=FIRST_SHARD) + 1

    def shown(self, connection: Connection, epoch: EpochScope) -> int:
        """Return the latest epoch of which a shard shows rows."""
        if not sa.inspect(connection).has_table(TABLE, schema=self.table.schema):
            return 0
        return max((row.epoch for row in self._rows(connection, epoch).values()), default=0)

    def advance(self, connection: Connection, epoch: EpochScope, shard: int = FIRST_SHARD) -> bool:
        """E5.1: the compare-and-set of a shard's row. ``False``: the epoch was applied earlier. Raises ``Fenced``,
        ``SinkError``."""
        row = self.table.c
        expected = epoch.parent_in_branch or 0
        follows = (row.epoch == expected) & (row.attempt == epoch.attempt)
        if self._update(connection, epoch, shard, follows, {"epoch": epoch.epoch}):
            return True
        found = self._row(connection, epoch, shard)
        if found is None:
            raise self._lost(epoch.key)
        if found.attempt > epoch.attempt:
            raise self._fenced(epoch, found.attempt)
        if found.epoch >= epoch.epoch:
            return False
        raise SinkError(
            f"Sink {self._sink!r}: its fence at {self._place} is at epoch {found.epoch}, attempt {found.attempt}; "
            f"epoch {epoch.epoch} of attempt {epoch.attempt} follows epoch {expected}. The database was restored to an "
            f"older state, or row ({epoch.branch}, {self._sink}, {shard}) of {TABLE} was changed. Restore both "
            "together."
        )

    def check(self, connection: Connection, epoch: EpochScope) -> None:
        """Check, within a task's transaction, that its epoch may still be written. Blocks take-overs until it ends.

        Raises ``Fenced`` when a later attempt owns the row, ``SinkError`` after a later epoch, or when the row is lost.
        """
        row = self.table.c
        mine = self._mine(epoch) & (row.shard == FIRST_SHARD)
        query = sa.select(row.attempt, row.epoch).where(mine).with_for_update(read=True)
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
        of_others = (row.target == self._target) & (row.branch != epoch.branch)
        query = sa.select(row.branch, row.sink, sa.func.max(row.epoch)).where(of_others).group_by(row.branch, row.sink)
        return [Marker(str(branch), str(sink), int(applied)) for branch, sink, applied in connection.execute(query)]

    def holders(self, connection: Connection, epoch: EpochScope) -> list[int]:
        """PostgreSQL: return the processes that hold locks of the sink's rows."""
        name = connection.dialect.identifier_preparer.format_table(self.table)
        found = connection.exec_driver_sql(
            f"SELECT DISTINCT l.pid FROM {name} f JOIN pg_locks l ON l.transactionid::text = f.xmax::text "
            "WHERE f.branch = %(branch)s AND f.sink = %(sink)s AND l.locktype = 'transactionid' "
            "AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()",
            {"branch": epoch.branch, "sink": self._sink},
        )
        return list(found.scalars())

    def _take(self, connection: Connection, epoch: EpochScope, place: SinkPlace, shard: int, row: _Row) -> None:
        """Assign a locked row to this attempt."""
        if row.attempt > epoch.attempt:
            raise self._fenced(epoch, row.attempt)
        if row.epoch > epoch.epoch:
            raise SinkAhead.of(f"Sink {self._sink!r} at {self._place}", row.epoch, epoch.application, epoch.epoch)
        # The pipeline was temporarily without the sink: no epoch up to this one remains to be applied.
        at = epoch.epoch if row.epoch < epoch.epoch and _is_without(epoch.key, place) else row.epoch
        if row.attempt < epoch.attempt or at != row.epoch:
            self._update(connection, epoch, shard, sa.true(), {"epoch": at, **self._held_by(epoch)})

    def _held_by(self, epoch: EpochScope) -> dict[str, Any]:
        return {"attempt": epoch.attempt, "target": self._target}

    def _row(self, connection: Connection, epoch: EpochScope, shard: int) -> _Row | None:
        row = self.table.c
        query = sa.select(row.attempt, row.epoch).where(self._mine(epoch), row.shard == shard)
        found = connection.execute(query).one_or_none()
        return _Row(found.attempt, found.epoch) if found else None

    def _rows(self, connection: Connection, epoch: EpochScope, lock: bool = False) -> dict[int, _Row]:
        """Return the sink's rows by shard, in ascending order. ``lock``: until the end of the transaction."""
        row = self.table.c
        query = sa.select(row.shard, row.attempt, row.epoch).where(self._mine(epoch)).order_by(row.shard)
        found = connection.execute(query.with_for_update() if lock else query)
        return {shard: _Row(attempt, at) for shard, attempt, at in found}

    def _update(
        self, connection: Connection, epoch: EpochScope, shard: int, when: sa.ColumnElement[bool], to: dict[str, Any]
    ) -> bool:
        statement = self.table.update().where(self._mine(epoch), self.table.c.shard == shard, when).values(to)
        return connection.execute(statement).rowcount == 1

    def _mine(self, epoch: EpochScope) -> sa.ColumnElement[bool]:
        row = self.table.c
        return (row.branch == epoch.branch) & (row.sink == self._sink)

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


def _logged_shards(key: EpochKey, place: SinkPlace) -> int:
    """Return the number of shards for which the epoch may have rows; 0 if it had no such sink."""
    named = [manifest.sinks[place.sink] for manifest in _manifests(key, place) if place.sink in manifest.sinks]
    return max((shards_of(sink.handles) for sink in named), default=0)


def _is_without(key: EpochKey, place: SinkPlace) -> bool:
    """Return whether the epoch is known to have had no such sink."""
    manifests = _manifests(key, place)
    return bool(manifests) and all(place.sink not in manifest.sinks for manifest in manifests)
