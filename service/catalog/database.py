"""The catalog's database: sessions, and the one border where SQLAlchemy's errors become Epochal's."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url
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
    OptionError,
    OutcomeUnknown,
)
from epochal.service.catalog.audit import call_to_note, note_call, watch_changes
from epochal.service.catalog.events import discard_recorded, write_recorded
from epochal.service.catalog.idempotency import current_claim, record_effect
from epochal.service.catalog.sqlite_write_queue import turns_of
from epochal.service.catalog.writes import Write
from epochal.service.domain.ports import ControlEvent
from epochal.wire.trust import check_database_authority

__all__ = ["CONNECTIONS", "Database", "Session", "make_engine"]

log = logging.getLogger("epochal.catalog")

_BUSY_SECONDS = 15.0
CONNECTIONS = 50
"""At most so many at a time, unless the maker of a :class:`Database` says otherwise."""
_KEPT_CONNECTIONS = 10
STOPPED_MILLISECONDS = 5_000
"""Between two statements of a write transaction on PostgreSQL, which ends the connection then. What a control plane
that was stopped had locked (the lease, a branch) would otherwise be locked until it goes on, for all others."""
TRUSTED_SECONDS = 1.0
"""A connection that answered so long ago is taken to be there, by what answers drivers, supervises and leads: who
calls them calls again, and they do so themselves."""
_INSUFFICIENT_PRIVILEGE = "42501"
_DISK_FULL = "53100"
_IO = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_LEAST_FREE_BYTES = 64 << 10
"""SQLite grows its log by pages, and its shared memory by 32 KB."""
_PATIENCE = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Of libpq, in seconds, the last one in milliseconds. A connection whose other end is gone without a word (a machine
that lost its power, a firewall that forgot it) would otherwise be waited for a quarter of an hour. The URL may say
otherwise."""
_NAMES = {"uq_applications_name": "applications.name", "uq_tokens_name": "tokens.name"}
"""Constraints whose violation means that somebody else has the name; SQLite names columns, not constraints."""


class Database:
    """Reading and writing transactions on one catalog.

    SQLite: WAL, foreign keys on, writers take the write lock when they begin (a deferred writer could find the database
    changed below it half-way); those of this process take turns, ``urgent`` ones first. PostgreSQL: READ COMMITTED;
    what has to be in order locks the branch's row.
    """

    def __init__(
        self, url: str, connections: int = CONNECTIONS, urgent: bool = False, keeps_events: bool = True
    ) -> None:
        """``keeps_events``: whether events that are recorded are written; false where nobody can listen."""
        self.url = url
        self._keeps_events = keeps_events
        self._listeners: list[Callable[[Sequence[ControlEvent]], None]] = []
        self._connections = connections
        self._engine = make_engine(url, connections, urgent)
        file = self._engine.url.database if self._engine.dialect.name == "sqlite" else None
        self._file = Path(file) if file else None
        self._turns = None if self._file is None else turns_of(self._file)
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
        """Its URL for people, without a password."""
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
        """One read transaction: everything read in it is from one moment on SQLite."""
        with _translated(self._file), self._read() as session:
            yield session

    @contextmanager
    def reading_one_moment(self) -> Iterator[Session]:
        """As :meth:`reading`; everything read in it is from one moment on PostgreSQL, too."""
        with _translated(self._file), self._read() as session:
            if self._engine.dialect.name == "postgresql":
                session.connection(
                    execution_options={"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
                )
            yield session

    @contextmanager
    def writing(self, write: Write | None = None) -> Iterator[Session]:
        """One write transaction, committed at the end of the block, rolled back by an exception.

        ``write``: which of the writes it is that drivers ask for. Raises ``Conflict``, ``NameTaken``,
        ``CatalogUnavailable``; ``OutcomeUnknown`` when the commit itself was lost.
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
            call = call_to_note()
            noted = None if call is None else note_call(session, call)
            if write is not None:
                write.written.hit()
            try:
                session.commit()
            except (exc.OperationalError, exc.InterfaceError) as error:
                if _refused_for_space(error):
                    raise  # by the database, so that it is known that the transaction was not committed
                reason = _no_space(error, self._file) or f"The catalog did not answer a commit: {_reason(error)}."
                raise OutcomeUnknown(f"{reason} Read it again.") from error
        if claim is not None:
            claim.acted = True
        if noted is not None:
            noted.landed()
        if write is not None:
            write.landed.hit()
        if events:
            self._tell(events)

    def listen(self, listener: Callable[[Sequence[ControlEvent]], None]) -> None:
        """Call ``listener`` with the events of each transaction of this object that has been committed, in the writer's
        thread: it must be quick. It hears of no other process, and nothing that a crash left unsaid."""
        self._listeners.append(listener)

    def _tell(self, events: Sequence[ControlEvent]) -> None:
        for listener in self._listeners:
            try:
                listener(events)
            except Exception:
                log.exception("a listener failed at %d events", len(events))

    def _turn(self) -> AbstractContextManager[None]:
        return nullcontext() if self._turns is None else self._turns.turn(self._urgent, _BUSY_SECONDS)

    @contextmanager
    def migrating(self) -> Iterator[Session]:
        """As :meth:`writing`, for changes of tables. SQLite's are made anew and take the old ones' names, which foreign
        keys forbid while they are checked row by row: there they are checked at the end. Raises ``CatalogVersion``."""
        sqlite = self._engine.dialect.name == "sqlite"
        with self._turn(), _translated(self._file), self._writing_engine.connect() as connection:
            # Within a transaction this pragma does nothing, so SQLAlchemy, which would begin one, is not asked.
            driver: Any = connection.connection.driver_connection
            if sqlite:
                driver.execute("PRAGMA foreign_keys=OFF")
            try:
                with Session(connection) as session:
                    if not sqlite:  # a migration may move files between two statements
                        session.connection().exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
                    yield session
                    session.flush()
                    if sqlite and connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
                        raise CatalogVersion("The migrated catalog would refer to rows that are not there; it stays.")
                    session.commit()
            finally:
                if sqlite:
                    driver.execute("PRAGMA foreign_keys=ON")

    @contextmanager
    def without_transaction(self) -> Iterator[Connection]:
        """PostgreSQL only: each statement by itself, for those that no transaction may hold."""
        with _translated(self._file), self._engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        self._engine.dispose()


def sqlite_file(url: str) -> Path | None:
    """The file of a catalog in SQLite. Raises ``OptionError`` for a URL that cannot be used."""
    parsed = _parsed(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def make_engine(url: str, connections: int = CONNECTIONS, urgent: bool = False) -> Engine:
    """An engine with the settings above. Raises ``OptionError`` for a URL that cannot be used."""
    kept = min(connections, _KEPT_CONNECTIONS)
    pool = {"pool_size": kept, "max_overflow": connections - kept}
    parsed = _parsed(url)
    match parsed.get_backend_name():
        case "postgresql":
            return _postgresql(parsed, pool, urgent)
        case "sqlite":
            return _sqlite(parsed, pool)
        case other:
            raise OptionError(f"The catalog cannot be kept in {other!r}; give a URL of SQLite or PostgreSQL.")


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except exc.ArgumentError:
        message = "The database URL cannot be read; give one as sqlite:///path or postgresql://host/name."
        raise OptionError(message) from None


def _postgresql(url: URL, pool: Mapping[str, Any], urgent: bool) -> Engine:
    check_database_authority(url.query)
    patience = {name: value for name, value in _PATIENCE.items() if name not in url.query}
    try:
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"), pool_pre_ping=not urgent, connect_args=patience, **pool
        )
    except ModuleNotFoundError:
        message = "PostgreSQL's driver is not installed; install it with pip install 'epochal[postgresql]'."
        raise OptionError(message) from None
    if urgent:
        event.listen(engine, "connect", _bound_each)  # its transactions are short: one statement less in each
        _ping_after_a_pause(engine)
    else:
        event.listen(engine, "begin", _bound_writing)
    return engine


def _ping_after_a_pause(engine: Engine) -> None:
    """Of connections that are used all the time most calls would be questions whether they are still there. One that
    was lost since it was used a moment ago is seen when it is used, and takes the others of its pool with it."""

    def used(_connection: Any, record: Any, *_: Any) -> None:
        record.info["used_at"] = time.monotonic()

    def check(connection: Any, record: Any, _proxy: Any) -> None:
        if time.monotonic() - record.info["used_at"] < TRUSTED_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise exc.InvalidatePoolError from error

    event.listen(engine, "connect", used)
    event.listen(engine, "checkin", used)
    event.listen(engine, "checkout", check)


def _bound_each(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = {STOPPED_MILLISECONDS}")
    connection.commit()


def _bound_writing(connection: Connection) -> None:
    if connection.get_execution_options().get("epochal_writing", False):
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {STOPPED_MILLISECONDS}")


def _sqlite(url: URL, pool: Mapping[str, Any]) -> Engine:
    address = url.set(drivername="sqlite")
    engine = create_engine(address, connect_args={"timeout": _BUSY_SECONDS}, **pool)
    if url.database and url.database != ":memory:":
        file = Path(url.database)
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise EnvironmentProblem(
                f"The catalog {file} cannot be made: {error.filename or file.parent}: {error.strerror}. Run the "
                "control plane as the owner of the folder, or give another place (--home, --database)."
            ) from error
        event.listen(engine, "do_connect", lambda *_: _make_private(file))
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make_private(file: Path) -> None:
    """Its owner's only, before SQLite opens it: its -wal and -shm files get the permissions that it has.

    A file that is there is not opened: to close it again would end the POSIX locks of this process's other connections,
    and another process would take itself for the last one, and remove a log that is in use.

    Raises ``EnvironmentProblem`` where others can read it, and this process may not change that.
    """
    try:
        with suppress(FileExistsError):
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, 0o600))
        for part in (file, *(file.with_name(file.name + end) for end in ("-wal", "-shm", "-turn"))):
            with suppress(FileNotFoundError):
                if part.stat().st_mode & 0o077:
                    part.chmod(0o600)
    except OSError as error:
        raise EnvironmentProblem(
            f"The catalog {file} cannot be made readable by its owner only: {error.strerror}. Run the control plane as "
            "the owner of the file, or correct its permissions."
        ) from error


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # pysqlite's own transactions begin too late; with isolation_level None SQLAlchemy's begin event decides.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("epochal_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


@contextmanager
def _translated(file: Path | None) -> Iterator[None]:
    try:
        yield
    except exc.IntegrityError as error:
        text = str(error.orig)
        if any(constraint in text or column in text for constraint, column in _NAMES.items()):
            raise NameTaken("The name is taken; choose another.") from error
        raise Conflict("The catalog was changed by somebody else at the same time; look again and repeat.") from error
    except exc.DataError as error:
        raise InvalidInput(f"A value cannot be kept in the catalog: {_reason(error)}.") from error
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError, exc.InternalError) as error:
        if full := _no_space(error, file):
            raise CatalogFull(full) from error
        raise CatalogUnavailable(f"The catalog cannot be reached or written: {_reason(error)}.") from error
    except exc.DBAPIError as error:
        if error.connection_invalidated:
            raise CatalogUnavailable(f"The catalog's connection was lost: {_reason(error)}.") from error
        if getattr(error.orig, "sqlstate", None) == _INSUFFICIENT_PRIVILEGE:
            raise EnvironmentProblem(
                f"The catalog refuses its role: {_reason(error)}. `epochal doctor` says what to grant."
            ) from error
        raise


def _refused_for_space(error: exc.SQLAlchemyError) -> bool:
    original = getattr(error, "orig", None)
    return (
        getattr(original, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        or getattr(original, "sqlstate", None) == _DISK_FULL
    )


def _no_space(error: exc.SQLAlchemyError, file: Path | None) -> str | None:
    """A sentence on the full disk that has caused ``error``. For its log and its shared memory SQLite reports a full
    disk as an I/O error, or as a file that cannot be opened."""
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
