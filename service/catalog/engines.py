"""Connections to the catalog's database: engines for SQLite and PostgreSQL, and PostgreSQL's notifications."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from epochal.errors import CatalogUnavailable, EnvironmentProblem, OptionError
from epochal.wire.trust import check_database_authority

BUSY_SECONDS = 15.0
CONNECTIONS = 50
"""At most so many at a time, unless the maker of a :class:`Database` says otherwise."""
_KEPT_CONNECTIONS = 10
STOPPED_MILLISECONDS = 5_000
"""Between two statements of a write transaction on PostgreSQL, which ends the connection then. What a control plane
that was stopped had locked (the lease, a branch) would otherwise be locked until it goes on, for all others."""
TRUSTED_SECONDS = 1.0
"""A connection that answered so long ago is taken to be there, by what answers drivers, supervises and leads: who
calls them calls again, and they do so themselves."""
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
    engine = create_engine(address, connect_args={"timeout": BUSY_SECONDS}, **pool)
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


_CHANNEL = "epochal"
APPLICATION_NAME = "epochal hints"
"""Of these connections, in ``pg_stat_activity``."""


class Notifications:
    """One connection that listens and sends; for one thread. Made anew after ``CatalogUnavailable``."""

    def __init__(self, url: str) -> None:
        self._engine = make_engine(url, connections=1)
        try:
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._connection.exec_driver_sql(f"SET application_name = '{APPLICATION_NAME}'")
            self._connection.exec_driver_sql(f"LISTEN {_CHANNEL}")
            self._driver: Any = self._connection.connection.driver_connection
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise CatalogUnavailable(f"The catalog's notifications cannot be listened to: {error}") from error

    def fileno(self) -> int:
        """Readable when there may be something to :meth:`receive`."""
        return int(self._driver.fileno())

    def send(self, payload: str) -> None:
        """Outside any transaction. Raises ``CatalogUnavailable``."""
        self._execute("SELECT pg_notify(:channel, :payload)", channel=_CHANNEL, payload=payload)

    def check(self) -> None:
        """Whether the connection is still there. Raises ``CatalogUnavailable``."""
        self._execute("SELECT 1")

    def receive(self) -> Iterator[str]:
        """What has come, without waiting. Raises ``CatalogUnavailable``."""
        import psycopg

        try:
            for notification in self._driver.notifies(timeout=0):
                yield notification.payload
        except psycopg.Error as error:
            raise CatalogUnavailable(f"The connection for the catalog's notifications was lost: {error}") from error

    def close(self) -> None:
        with suppress(SQLAlchemyError):
            self._connection.close()
        self._engine.dispose()

    def _execute(self, statement: str, **values: str) -> None:
        try:
            self._connection.execute(text(statement), values)
        except SQLAlchemyError as error:
            raise CatalogUnavailable(f"The connection for the catalog's notifications was lost: {error}") from error
