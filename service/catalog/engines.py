"""Connections to the catalog's database: engines for SQLite and PostgreSQL, and PostgreSQL's notifications."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from epochal.background.retries import Backoff, attempts
from epochal.errors import CatalogUnavailable, EnvironmentProblem, OptionError
from epochal.wire.trust import check_database_authority

BUSY_SECONDS = 15.0
_LOG_PAUSES = Backoff(0.005, 0.2)
CONNECTIONS = 50
"""Default maximum number of connections of a :class:`Database`."""
_KEPT_CONNECTIONS = 10
STOPPED_MILLISECONDS = 5_000
"""Timeout between two statements of a write transaction on PostgreSQL, which then closes the connection. Otherwise a
suspended control plane would hold its locks (the lease, a branch) until it resumes."""
TRUSTED_SECONDS = 1.0
"""Connections used within this time are not tested before use, where callers retry (drivers, supervision, leadership).
"""
_PATIENCE = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Settings of libpq, in seconds; ``tcp_user_timeout`` in milliseconds. Without them, a connection whose peer has
disappeared (power failure, a firewall that dropped its state) blocks for a quarter of an hour. The URL can override
them."""


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite catalog. Raises ``OptionError`` for an invalid URL."""
    parsed = _parsed(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def make_engine(url: str, connections: int = CONNECTIONS, urgent: bool = False) -> Engine:
    """An engine with these settings. Raises ``OptionError`` for an invalid URL."""
    kept = min(connections, _KEPT_CONNECTIONS)
    pool = {"pool_size": kept, "max_overflow": connections - kept}
    parsed = _parsed(url)
    match parsed.get_backend_name():
        case "postgresql":
            return _postgresql(parsed, pool, urgent)
        case "sqlite":
            return _sqlite(parsed, pool)
        case other:
            raise OptionError(f"The catalog does not support {other!r}; give a URL of SQLite or PostgreSQL.")


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except exc.ArgumentError:
        message = "Invalid database URL; give one as sqlite:///path or postgresql://host/name."
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
        event.listen(
            engine, "connect", _bound_each
        )  # set once per connection: its transactions are short, and this saves a statement in each
        _ping_after_a_pause(engine)
    else:
        event.listen(engine, "begin", _bound_writing)
    return engine


def _ping_after_a_pause(engine: Engine) -> None:
    """Test connections only after a pause. A connection that was lost since its last use fails on use, and invalidates
    the pool."""

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
    engine = create_engine(address, connect_args={"timeout": BUSY_SECONDS}, **pool)
    if url.database and url.database != ":memory:":
        file = Path(url.database)
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise EnvironmentProblem(
                f"Cannot create the catalog {file}: {error.filename or file.parent}: {error.strerror}. Run the "
                "control plane as the owner of the folder, or give another location (--home, --database)."
            ) from error
        event.listen(engine, "do_connect", lambda *_: _make_private(file))
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make_private(file: Path) -> None:
    """Create the file with mode 0600 before SQLite opens it; its -wal and -shm files inherit the mode.

    An existing file is not opened: closing it would release the POSIX locks of this process's other connections, and
    another process could then consider itself the last one and remove a log in use.

    Raises ``EnvironmentProblem`` if others can read the file and this process may not change its mode.
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
            f"Cannot restrict the catalog {file} to its owner: {error.strerror}. Run the control plane "
            "as the owner of the file, or correct its permissions."
        ) from error


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # pysqlite begins transactions too late. With isolation_level None, SQLAlchemy's begin event begins them.
    connection.isolation_level = None
    cursor = connection.cursor()
    _use_log(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _use_log(cursor: sqlite3.Cursor) -> None:
    """Choose WAL. If several connections change the mode of a new file at the same time, SQLite refuses all but one of
    them without waiting, because each holds a lock that the others need."""
    for attempt in attempts(_LOG_PAUSES, timeout=BUSY_SECONDS):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if attempt.is_last or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("epochal_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


_CHANNEL = "epochal"
APPLICATION_NAME = "epochal hints"
"""Name of these connections in ``pg_stat_activity``."""


class Notifications:
    """A connection of PostgreSQL's LISTEN and NOTIFY. Notifications are hints and may be lost. For one thread; create a
    new object after ``CatalogUnavailable``."""

    def __init__(self, url: str) -> None:
        self._engine = make_engine(url, connections=1)
        try:
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._connection.exec_driver_sql(f"SET application_name = '{APPLICATION_NAME}'")
            self._connection.exec_driver_sql(f"LISTEN {_CHANNEL}")
            self._driver: Any = self._connection.connection.driver_connection
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise CatalogUnavailable(f"Cannot listen to notifications of the catalog: {error}") from error

    def fileno(self) -> int:
        """File descriptor that is readable when :meth:`receive` may return something."""
        return int(self._driver.fileno())

    def send(self, payload: str) -> None:
        """Send a notification outside any transaction. Raises ``CatalogUnavailable``."""
        self._execute("SELECT pg_notify(:channel, :payload)", channel=_CHANNEL, payload=payload)

    def check(self) -> None:
        """Raises ``CatalogUnavailable`` if the connection is lost."""
        self._execute("SELECT 1")

    def receive(self) -> Iterator[str]:
        """Received notifications, without waiting. Raises ``CatalogUnavailable``."""
        import psycopg

        try:
            for notification in self._driver.notifies(timeout=0):
                yield notification.payload
        except psycopg.Error as error:
            raise CatalogUnavailable(f"The connection for notifications of the catalog was lost: {error}") from error

    def close(self) -> None:
        with suppress(SQLAlchemyError):
            self._connection.close()
        self._engine.dispose()

    def _execute(self, statement: str, **values: str) -> None:
        try:
            self._connection.execute(text(statement), values)
        except SQLAlchemyError as error:
            raise CatalogUnavailable(f"The connection for notifications of the catalog was lost: {error}") from error
