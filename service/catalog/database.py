"""Transactions on the catalog's database, and the translation of SQLAlchemy's errors to Epochal's."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from sqlalchemy import Connection, Engine, event, exc
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import QueuePool

from epochal.errors import (
    CatalogFull,
    CatalogUnavailable,
    CatalogVersion,
    Conflict,
    EnvironmentProblem,
    InvalidInput,
    NameTaken,
    OutcomeUnknown,
)
from epochal.service.catalog.audit import call_to_record, record_call, watch_changes
from epochal.service.catalog.engines import BUSY_SECONDS, CONNECTIONS, make_engine
from epochal.service.catalog.events import discard_recorded, write_recorded
from epochal.service.catalog.idempotency import current_claim, record_effect
from epochal.service.catalog.sqlite_write_queue import write_queue_of
from epochal.service.catalog.writes import Write
from epochal.service.domain.events import ControlEvent

__all__ = ["Database", "Session"]

log = logging.getLogger("epochal.catalog")

_INSUFFICIENT_PRIVILEGE = "42501"
_DISK_FULL = "53100"
_IO = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_LEAST_FREE_BYTES = 64 << 10
"""SQLite extends its log by pages and its shared memory by 32 KB."""
_NAMES = {"uq_applications_name": "applications.name", "uq_tokens_name": "tokens.name"}
"""Constraints whose violation means that a name is taken. SQLite reports columns instead of constraints."""


class Database:
    """Read and write transactions on one catalog.

    SQLite: WAL, with foreign keys. Write transactions take the write lock when they begin, because a deferred writer
    could find that the database has changed. Write transactions of this process are queued, ``urgent`` ones first.
    PostgreSQL: READ COMMITTED; operations on a branch are serialised by the lock of its row.
    """

    def __init__(
        self, url: str, connections: int = CONNECTIONS, urgent: bool = False, keeps_events: bool = True
    ) -> None:
        """``keeps_events``: write recorded events. False for a catalog without listeners."""
        self.url = url
        self._keeps_events = keeps_events
        self._listeners: list[Callable[[Sequence[ControlEvent]], None]] = []
        self._connections = connections
        self._engine = make_engine(url, connections, urgent)
        file = self._engine.url.database if self._engine.dialect.name == "sqlite" else None
        self._file = Path(file) if file else None
        self._turns = None if self._file is None else write_queue_of(self._file)
        self._urgent = urgent
        self._writing_engine = self._engine.execution_options(epochal_writing=True)
        self._read = sessionmaker(self._engine, expire_on_commit=False)
        self._write = sessionmaker(self._writing_engine, expire_on_commit=False)
        event.listen(self._write, "before_flush", watch_changes)

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def place(self) -> str:
        """The URL without its password, for messages."""
        return self._engine.url._replace(password=None).render_as_string()

    @property
    def connections_in_use(self) -> int:
        pool = self._engine.pool
        return pool.checkedout() if isinstance(pool, QueuePool) else 0

    @property
    def connections_limit(self) -> int:
        return self._connections

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A read transaction. On SQLite it reads one consistent snapshot."""
        with _translated(self._file), self._read() as session:
            yield session

    @contextmanager
    def reading_one_moment(self) -> Iterator[Session]:
        """A read transaction that reads one consistent snapshot, on PostgreSQL also."""
        with _translated(self._file), self._read() as session:
            if self._engine.dialect.name == "postgresql":
                session.connection(
                    execution_options={"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
                )
            yield session

    @contextmanager
    def writing(self, write: Write | None = None) -> Iterator[Session]:
        """A write transaction: committed at the end of the block, rolled back by an exception.

        ``write``: the write of a driver that this transaction carries out. Raises ``Conflict``, ``NameTaken``,
        ``CatalogUnavailable``; ``OutcomeUnknown`` if the connection was lost during the commit.
        """
        with self._turn(), _translated(self._file), self._write() as session:
            yield session
            session.flush()
            if not self._keeps_events:
                discard_recorded(session)
            events = write_recorded(session)
            claim = current_claim()
            if claim is not None:
                record_effect(session, claim)
            call = call_to_record()
            recorded = None if call is None else record_call(session, call)
            if write is not None:
                write.written.hit()
            try:
                session.commit()
            except (exc.OperationalError, exc.InterfaceError) as error:
                if _refused_for_space(error):
                    raise  # the database refused it, so the transaction is known to be rolled back
                reason = _no_space(error, self._file) or f"The catalog did not answer a commit: {_reason(error)}."
                raise OutcomeUnknown(f"{reason} Read it again.") from error
        if claim is not None:
            claim.acted = True
        if recorded is not None:
            recorded.set_landed()
        if write is not None:
            write.landed.hit()
        if events:
            self._tell(events)

    def listen(self, listener: Callable[[Sequence[ControlEvent]], None]) -> None:
        """Call ``listener`` with the events of each committed transaction of this object, in the writer's thread; it
        must not block. Transactions of other processes are not reported, and a crash may lose notifications."""
        self._listeners.append(listener)

    def _tell(self, events: Sequence[ControlEvent]) -> None:
        for listener in self._listeners:
            try:
                listener(events)
            except Exception:
                log.exception("a listener failed on %d events", len(events))

    def _turn(self) -> AbstractContextManager[None]:
        return nullcontext() if self._turns is None else self._turns.turn(self._urgent, BUSY_SECONDS)

    @contextmanager
    def migrating(self) -> Iterator[Session]:
        """A write transaction that changes the schema. SQLite recreates altered tables, which foreign key enforcement
        would refuse; foreign keys are therefore checked at the end. Raises ``CatalogVersion``."""
        sqlite = self._engine.dialect.name == "sqlite"
        with self._turn(), _translated(self._file), self._writing_engine.connect() as connection:
            # This pragma has no effect within a transaction, which SQLAlchemy would begin.
            driver: Any = connection.connection.driver_connection
            if sqlite:
                driver.execute("PRAGMA foreign_keys=OFF")
            try:
                with Session(connection) as session:
                    if not sqlite:  # a migration may take longer than the limit between two statements
                        session.connection().exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
                    yield session
                    session.flush()
                    if sqlite and connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
                        raise CatalogVersion(
                            "The migrated catalog would contain references to missing rows. The "
                            "migration was rolled back."
                        )
                    session.commit()
            finally:
                if sqlite:
                    driver.execute("PRAGMA foreign_keys=ON")

    @contextmanager
    def without_transaction(self) -> Iterator[Connection]:
        """A connection in autocommit mode, for statements that cannot run in a transaction. PostgreSQL only."""
        with _translated(self._file), self._engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        self._engine.dispose()


@contextmanager
def _translated(file: Path | None) -> Iterator[None]:
    try:
        yield
    except exc.IntegrityError as error:
        text = str(error.orig)
        if any(constraint in text or column in text for constraint, column in _NAMES.items()):
            raise NameTaken("The name is taken; choose another.") from error
        raise Conflict("The catalog was changed concurrently. Read it again and repeat the call.") from error
    except exc.DataError as error:
        raise InvalidInput(f"A value cannot be stored in the catalog: {_reason(error)}.") from error
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError, exc.InternalError) as error:
        if full := _no_space(error, file):
            raise CatalogFull(full) from error
        raise CatalogUnavailable(f"The catalog cannot be reached or written: {_reason(error)}.") from error
    except exc.DBAPIError as error:
        if error.connection_invalidated:
            raise CatalogUnavailable(f"The catalog's connection was lost: {_reason(error)}.") from error
        if getattr(error.orig, "sqlstate", None) == _INSUFFICIENT_PRIVILEGE:
            raise EnvironmentProblem(
                f"The catalog refuses its role: {_reason(error)}. `epochal doctor` lists the missing privileges."
            ) from error
        raise


def _refused_for_space(error: exc.SQLAlchemyError) -> bool:
    original = getattr(error, "orig", None)
    return (
        getattr(original, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        or getattr(original, "sqlstate", None) == _DISK_FULL
    )


def _no_space(error: exc.SQLAlchemyError, file: Path | None) -> str | None:
    """A message if ``error`` was caused by a full disk. For its log and shared memory SQLite reports a full disk as an
    I/O error or as a file that cannot be opened."""
    full = _refused_for_space(error)
    if not full and file is not None and getattr(getattr(error, "orig", None), "sqlite_errorcode", 0) & 0xFF in _IO:
        with suppress(OSError):
            full = shutil.disk_usage(file.parent).free < _LEAST_FREE_BYTES
    if not full:
        return None
    place = "of its database's server" if file is None else f"with the file {file}"
    return f"The catalog cannot be written: no space is left on the disk {place} ({_reason(error)}). Free some space."


def _reason(error: exc.SQLAlchemyError) -> str:
    original = getattr(error, "orig", None)
    lines = str(original if original is not None else error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Bulkhead:
    """Threads and connections that are reserved for drivers and remain available when the common ones are exhausted.

    A delayed heartbeat would cost a healthy driver its execution. Each thread needs one connection.
    """

    def __init__(self, url: str, threads: int) -> None:
        self.database = Database(url, connections=threads, urgent=True)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="drivers")

    async def run(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Call ``function(*arguments)`` in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, partial(copy_context().run, function, *arguments)
        )

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.database.close()
