"""Leases of control planes: what at most one of them holds at a time, judged by the database's clock alone."""

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
from epochal.service.domain.leases import Grant, Holder, IsGone, Lease, may_renew, may_take


class Leases:
    """The leases of a catalog, for one holder. All methods raise ``CatalogUnavailable`` and ``OutcomeUnknown``: then
    the lease counts as not held, and is asked for again."""

    def __init__(self, database: Database, holder: Holder, is_gone: IsGone = lambda holder: False) -> None:
        self._database = database
        self._holder = holder
        self._is_gone = is_gone

    def acquire(self, name: str, seconds: float) -> Grant | Lease:
        """Begin a new term of ``seconds``; or who holds the lease."""
        with self._database.reading() as session:
            held = _lease(session.get(models.Lease, name))
            if held is not None and not self._may_take(held, session):
                return held
        try:
            return self._take(name, seconds)
        except Conflict:  # another one was first to make the row
            return self._take(name, seconds)

    def _take(self, name: str, seconds: float) -> Grant | Lease:
        with self._database.writing() as session:
            row = session.get(models.Lease, name, with_for_update=True)
            held = _lease(row)
            # Asked after the lock is held: another one may have renewed the lease while this one waited for it.
            moment = database_now(session)
            if held is not None and not may_take(held, moment, self._holder, self._is_gone):
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
        """``None``: the lease is lost, and nothing was changed."""
        with self._database.writing() as session:
            row = session.get(models.Lease, name, with_for_update=True)
            moment = database_now(session)
            if row is None or not may_renew(_lease(row), term, moment, self._holder):
                return None
            row.renewed_at = moment
            row.expires_at = moment + timedelta(seconds=seconds)
            return Grant(term, moment)

    def release(self, name: str, term: int) -> None:
        """Whoever comes next need not wait. Nothing happens when it is not held. Terms go on from where they are."""
        with self._database.writing() as session:
            row = session.get(models.Lease, name, with_for_update=True)
            moment = database_now(session)
            if row is not None and may_renew(_lease(row), term, moment, self._holder):
                row.expires_at = moment

    def _may_take(self, held: Lease, session: Session) -> bool:
        return may_take(held, database_now(session), self._holder, self._is_gone)


def _lease(row: models.Lease | None) -> Lease | None:
    if row is None:
        return None
    return Lease(Holder(row.holder, row.host, row.boot, row.process), row.term, row.expires_at)


_ASK_SECONDS = 0.1


class Alone(IntEnum):
    """Numbers that all control planes of a catalog agree on, of any version."""

    MIGRATION = 0x65706F63
    STORE = 0x65706F64
    """Whether an operation on the whole store may begin, and whose the store is."""
    ADMIN_TOKEN = 0x65706F65
    """Which admin tokens there are."""


def alone(within: Session | Connection, what: Alone) -> None:
    """Wait until nobody else does it, and keep others waiting until this transaction ends."""
    connection = within.connection() if isinstance(within, Session) else within
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(int(what))))


@contextmanager
def alone_meanwhile(database: Database, what: Alone) -> Iterator[None]:
    """For what takes several transactions. Whoever waits asks again and again, and has no transaction meanwhile: an
    index that is built concurrently waits for all of those. Raises ``CatalogUnavailable``."""
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
