"""Mutual exclusion between control planes: leases, by the database clock alone, and PostgreSQL's advisory locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import IntEnum

from sqlalchemy import Connection, func, select
from sqlalchemy.orm import Session

from epochal.background.retries import attempts
from epochal.errors import Conflict
from epochal.service.catalog import models
from epochal.service.catalog.database import Database
from epochal.service.catalog.types import database_now
from epochal.service.domain.leases import Grant, HasTerminated, Holder, Lease, may_renew, may_take


class Leases:
    """The leases of a catalog, for one holder. All methods raise ``CatalogUnavailable`` and ``OutcomeUnknown``; the
    lease then counts as not held, and the caller retries."""

    def __init__(
        self, database: Database, holder: Holder, has_terminated: HasTerminated = lambda holder: False
    ) -> None:
        self._database = database
        self._holder = holder
        self._has_terminated = has_terminated

    def acquire(self, name: str, seconds: float) -> Grant | Lease:
        """Begin a new term of ``seconds``, or return the lease of the current holder."""
        with self._database.reading() as session:
            held = _lease(session.get(models.Lease, name))
            if held is not None and not self._may_take(held, session):
                return held
        try:
            return self._take(name, seconds)
        except Conflict:  # another control plane created the row first
            return self._take(name, seconds)

    def _take(self, name: str, seconds: float) -> Grant | Lease:
        with self._database.writing() as session:
            row = session.get(models.Lease, name, with_for_update=True)
            held = _lease(row)
            # Read after the lock is acquired: the holder may have renewed the lease while this transaction waited.
            moment = database_now(session)
            if held is not None and not may_take(held, moment, self._holder, self._has_terminated):
                return held
            if row is None:
                row = models.Lease(name=name, term=0)
                session.add(row)
            row.term += 1
            row.holder, row.host = self._holder.id, self._holder.host
            row.boot, row.process = self._holder.boot, self._holder.process
            row.acquired_at = row.renewed_at = moment
            row.expires_at = moment + timedelta(seconds=seconds)
            return Grant(row.term, moment)

    def renew(self, name: str, term: int, seconds: float) -> Grant | None:
        """``None`` if the lease is lost; nothing is changed then."""
        with self._database.writing() as session:
            row = session.get(models.Lease, name, with_for_update=True)
            moment = database_now(session)
            if row is None or not may_renew(_lease(row), term, moment, self._holder):
                return None
            row.renewed_at = moment
            row.expires_at = moment + timedelta(seconds=seconds)
            return Grant(term, moment)

    def release(self, name: str, term: int) -> None:
        """Let the lease expire now. Without effect if it is not held. Terms continue to increase."""
        with self._database.writing() as session:
            row = session.get(models.Lease, name, with_for_update=True)
            moment = database_now(session)
            if row is not None and may_renew(_lease(row), term, moment, self._holder):
                row.expires_at = moment

    def _may_take(self, held: Lease, session: Session) -> bool:
        return may_take(held, database_now(session), self._holder, self._has_terminated)


def _lease(row: models.Lease | None) -> Lease | None:
    if row is None:
        return None
    return Lease(Holder(row.holder, row.host, row.boot, row.process), row.term, row.expires_at)


_ASK_SECONDS = 0.1


class LockKey(IntEnum):
    """Keys of advisory locks. All versions of Epochal share them."""

    MIGRATION = 0x65706F63
    STORE = 0x65706F64
    """Beginning of operations on the whole store; ownership of the store."""
    ADMIN_TOKEN = 0x65706F65
    """Creation of admin tokens."""


def transaction_lock(within: Session | Connection, what: LockKey) -> None:
    """Hold an advisory lock until the transaction ends. No lock is needed on SQLite, which has one writer."""
    connection = within.connection() if isinstance(within, Session) else within
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(int(what))))


@contextmanager
def advisory_lock(database: Database, what: LockKey) -> Iterator[None]:
    """Hold an advisory lock over several transactions. It is acquired by polling without an open transaction, because
    concurrent index builds wait for all open transactions. Raises ``CatalogUnavailable``."""
    if database.engine.dialect.name != "postgresql":
        yield
        return
    with database.without_transaction() as connection:
        for _ in attempts(_ASK_SECONDS):
            if connection.scalar(select(func.pg_try_advisory_lock(int(what)))):
                break
        try:
            yield
        finally:
            connection.scalar(select(func.pg_advisory_unlock(int(what))))
