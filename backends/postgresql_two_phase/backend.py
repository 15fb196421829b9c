"""Sink backend of ``dbms.two_phase_sink``. The package's docstring lists the steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pyarrow as pa
import sqlalchemy as sa
from psycopg import errors, sql

from epochal.backends.dbms.access import TableAccess
from epochal.backends.dbms.address import DatabaseAddress
from epochal.backends.dbms.failures import translated
from epochal.backends.dbms.fence import check_not_repeated
from epochal.backends.dbms.patience import patience
from epochal.backends.dbms.writing import Writing
from epochal.backends.earlier_manifests import manifest_paths
from epochal.backends.postgresql_two_phase.ledger import PREFIX, Ledger, TransactionName
from epochal.backends.postgresql_two_phase.ledger import TABLE as LEDGER_TABLE
from epochal.backends.postgresql_two_phase.transaction import TwoPhaseTransaction
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.catalog import Succession
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import OptionError, OutcomeUnknown, SinkAhead, SinkError
from epochal.faults import declare

SWEPT = declare("R1.postgresql.swept", "table and ledger exist, transactions of no manifest are rolled back")
SWEPT_BRANCH = declare("R1.postgresql.swept-branch", "transactions of a branch that a rollback left are rolled back")
BEFORE_COMMIT = declare("E5.postgresql.before-commit", "the subtasks' transactions are prepared, none is committed")
COMMITTED_ONE = declare("E5.postgresql.committed-one", "one subtask's transaction is committed, others may not be")


class PostgresqlTwoPhaseBackend(SinkBackend):
    """Sink backend. ``place``: the sink's name and the snapshot store. Serialisable: connections stay in the
    process."""

    def __init__(self, place: SinkPlace, address: DatabaseAddress, writing: Writing) -> None:
        if address.dialect != "postgresql":
            raise OptionError(
                f"Two-phase commit requires PostgreSQL; {address.place} is another database. Use dbms.sink."
            )
        self._place = place
        self._address = address
        self._writing = writing
        self._access = TableAccess(place.sink, address, writing)
        self._ledger = Ledger(writing)
        self._session: psycopg.Connection[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    @property
    def kind(self) -> str:
        return "postgresql-two-phase"

    @property
    def target(self) -> str:
        return f"postgresql-two-phase:{self._address.place}/{self._writing.table}"

    def check_types(self, schema: pa.Schema) -> None:
        self._access.check_types(schema)

    def check(self, schema: pa.Schema) -> None:
        self._access.check(schema)
        with self._access.transaction("ask for its settings", reading=True) as connection:
            self._probe(connection)

    def succeed(self, epoch: EpochScope, succession: Succession) -> None:
        # Decided transactions of another branch are committed; its other prepared ones would hold their locks forever.
        for branch in succession.branches:
            self._roll_back(self._prepared(branch))
            SWEPT_BRANCH.hit(epoch.epoch)

    def recover(self, epoch: EpochScope) -> None:
        with self._access.transaction("prepare the tables") as connection:
            self._probe(connection)
            self._access.prepare(connection)
            self._ledger.create(connection)
            others = self._ledger.others(connection, epoch)
            check_not_repeated(connection, epoch, self._place.sink, self._writing, others, LEDGER_TABLE)
            self._check_not_ahead(self._ledger.latest(connection, epoch, self._place.sink), epoch)
        self._roll_back(name for name in self._prepared(epoch.branch) if not self._may_be_named(name, epoch))
        SWEPT.hit(epoch.epoch)

    def shown(self, epoch: EpochScope) -> int | None:
        with self._access.transaction("read its ledger", reading=True) as connection:
            return self._ledger.latest(connection, epoch, self._place.sink)

    def start(self, task: TaskScope) -> TwoPhaseTransaction:
        return TwoPhaseTransaction(self._access, self._ledger, task)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        names = [name for handle in sorted(handles, key=lambda handle: handle.subtask) for name in _named([handle])]
        BEFORE_COMMIT.hit(epoch.epoch)
        for name in names:
            with self._connected(f"commit {name.gid}", problem=OutcomeUnknown) as session:
                self._commit(session, name)
            COMMITTED_ONE.hit(epoch.epoch)
        if names:
            with self._connected("tidy its ledger") as session:
                self._ledger.forget(session, epoch, self._place.sink)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self._roll_back(_named(handles))

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        kept = set(_named(keep))
        return self._roll_back(
            name
            for name in self._prepared(epoch.branch)
            if name.epoch == epoch.epoch and name.attempt <= epoch.attempt and name not in kept
        )

    def close(self) -> None:
        """Close this process's connections; they are opened again on demand."""
        self._access.close()
        if self._session is not None:
            with suppress(Exception):
                self._session.close()
        self._session = None

    def _check_not_ahead(self, latest: int, epoch: EpochScope) -> None:
        if latest > epoch.epoch:
            raise SinkAhead.of(
                f"{self._access.subject} at {self._address.place}", latest, epoch.application, epoch.epoch
            )

    def _commit(self, session: psycopg.Connection[Any], name: TransactionName) -> None:
        try:
            session.execute(sql.SQL("COMMIT PREPARED {}").format(sql.Literal(name.gid)))
        except errors.UndefinedObject:
            if not self._ledger.has(session, name):
                raise SinkError(
                    f"{self._access.subject}: prepared transaction {name.gid}, a part of epoch {name.epoch}, is lost: "
                    f"neither prepared nor committed at {self._address.place}. It was rolled back, or the "
                    "database was restored to an older state. Restore the current database; the commit is retried."
                ) from None

    def _roll_back(self, names: Iterable[TransactionName]) -> int:
        """Roll back the transactions; return the number of those that still existed."""
        count = 0
        for name in names:
            with self._connected(f"roll back {name.gid}") as session, suppress(errors.UndefinedObject):
                session.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name.gid)))
                count += 1
        return count

    def _prepared(self, branch: str) -> list[TransactionName]:
        """Return the prepared transactions of the branch and this sink in the database."""
        with self._connected("list prepared transactions") as session:
            found = session.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)",
                (f"{PREFIX}:{branch}:{self._place.sink}:",),
            ).fetchall()
        names = [TransactionName.parse(row[0]) for row in found]
        return [name for name in names if name is not None]

    def _may_be_named(self, name: TransactionName, epoch: EpochScope) -> bool:
        """R1: return whether a manifest names the transaction. An epoch without any manifest in the store is not
        judged."""
        if name.epoch > epoch.epoch:
            return False
        store = self._place.store
        if store is None:
            return True
        paths = manifest_paths(store, EpochKey(epoch.branch, name.epoch))
        return not paths or any(name.gid.encode() in store.read(path) for path in paths)

    def _probe(self, connection: sa.Connection) -> None:
        allowed = int(connection.exec_driver_sql("SHOW max_prepared_transactions").scalar_one())
        if allowed == 0:
            raise SinkError(
                f"{self._access.subject}: {self._address.place} prepares no transactions: max_prepared_transactions "
                "is 0, PostgreSQL's default. Set it to at least four times the number of subtasks and restart the "
                "server, or use dbms.sink, which needs no such setting."
            )

    @contextmanager
    def _connected(self, doing: str, problem: type[SinkError] | type[OutcomeUnknown] = SinkError) -> Iterator[Any]:
        """The driver's session, reopened after an error that breaks it."""
        try:
            with translated(self._access.subject, doing, self._address, problem):
                if self._session is None or self._session.closed:
                    self._session = psycopg.connect(**self._address.libpq(), autocommit=True)
                with patience(self._session):
                    yield self._session
        except BaseException:
            if self._session is not None and self._session.broken:
                self._session = None
            raise


def _named(handles: Sequence[Handle]) -> list[TransactionName]:
    names = [TransactionName.parse(str(handle.payload["gid"])) for handle in handles if handle.payload]
    return [name for name in names if name is not None]
