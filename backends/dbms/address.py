"""Address of a database: a URL without a password, the password by reference, and options by allow-list."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url

from epochal.addresses import check_servers
from epochal.declarations.names import closest
from epochal.errors import OptionError
from epochal.secrets import Secret
from epochal.wire.trust import check_database_authority

DIALECTS = {"postgresql": "postgresql", "sqlite": "sqlite", "mysql": "mysql", "mariadb": "mysql"}
"""Accepted URL schemes, and the dialect of each."""
DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+pysqlite", "mysql": "mysql+pymysql"}
INSTALL = {"postgresql": "pip install 'epochal[postgresql]'", "mysql": "pip install 'epochal[mariadb]'"}
OPTIONS: Mapping[str, frozenset[str]] = {
    "postgresql": frozenset({"connect_timeout", "sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs"}),
    "sqlite": frozenset({"timeout"}),
    "mysql": frozenset({"connect_timeout", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity"}),
}
"""Accepted options of the client, by dialect."""
BUSY_SECONDS = 15.0
LONGEST_SILENCE_MS = 30_000


@dataclass(frozen=True)
class DatabaseAddress:
    """A database. Serialisable, without secrets; the password is looked up when a connection is opened."""

    url: str
    password: Secret | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, what: str, url: str, password: Secret | None, options: Mapping[str, Any]) -> DatabaseAddress:
        """Parse an address. Raises ``OptionError`` that names ``what`` (``dbms.sink``) for invalid settings."""
        try:
            parsed = make_url(url)
        except exc.ArgumentError:
            # The URL may hold a password: do not repeat it.
            raise OptionError(
                f"{what}: the URL cannot be read; write postgresql://user@host:5432/database or sqlite:///path."
            ) from None
        if parsed.password:
            raise OptionError(
                f"{what}: the URL holds a password, which manifests and logs would contain. Remove it, and set "
                "password=secret('env:NAME') or secret('file:/path')."
            )
        if password is not None and not isinstance(password, Secret):
            raise OptionError(f"{what}: password must be a secret: password=secret('env:NAME').")
        if parsed.host:
            check_servers(what, parsed.host)
        dialect = _dialect(what, parsed)
        _check_options(what, dialect, {**parsed.query, **options})
        arguments = tuple(sorted({**parsed.query, **options}.items()))
        plain = parsed.set(drivername=dialect, query={})
        if dialect == "sqlite":
            plain = plain.set(database=_sqlite_file(what, plain.database))
        elif not plain.database:
            raise OptionError(f"{what}: the URL names no database; write {dialect}://user@host/database.")
        return cls(plain.render_as_string(), password, arguments)

    @property
    def dialect(self) -> str:
        """``postgresql``, ``sqlite`` or ``mysql`` (also for MariaDB)."""
        return make_url(self.url).drivername

    @property
    def place(self) -> str:
        """Display name of the database, also for comparison: without user, password and options."""
        parsed = make_url(self.url)
        if parsed.drivername == "sqlite":
            return f"sqlite:{parsed.database}"
        ports = {"postgresql": 5432, "mysql": 3306}
        host = f"{parsed.host or 'localhost'}:{parsed.port or ports[parsed.drivername]}"
        return f"{parsed.drivername}://{host}/{parsed.database}"

    @property
    def secrets(self) -> dict[str, Any]:
        """Secrets, for :func:`epochal.secrets.without_secrets`."""
        return {"password": self.password}

    def engine(self, isolation: str | None = None) -> Engine:
        """Return a new engine with a small connection pool. Raises ``OptionError`` for a missing driver, secret, or
        file of trusted certificates.

        ``isolation``: isolation level of its transactions; ``None``: the server's default.
        """
        url = make_url(self.url).set(drivername=DRIVERS[self.dialect])
        if self.password is not None:
            url = url.set(password=self.password.reveal())
        try:
            engine = create_engine(
                url,
                connect_args=_settings(self.dialect, dict(self.options)),
                pool_pre_ping=self.dialect != "sqlite",
                pool_size=2,
                hide_parameters=True,
                json_serializer=_as_it_is,
                json_deserializer=_as_it_is,
                **({} if isolation is None else {"isolation_level": isolation}),
            )
        except ModuleNotFoundError:
            raise OptionError(
                f"The driver for {self.dialect} is not installed: {INSTALL.get(self.dialect, 'install it')}, where the "
                "driver and the executors run."
            ) from None
        if self.dialect == "sqlite":
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        return engine

    def libpq(self) -> dict[str, Any]:
        """Return arguments for ``psycopg.connect`` with the password revealed; the caller must not store them."""
        url = make_url(self.url)
        found = {"host": url.host, "port": url.port, "user": url.username, "dbname": url.database}
        if self.password is not None:
            found["password"] = self.password.reveal()
        return {
            **{name: value for name, value in found.items() if value},
            **_settings("postgresql", dict(self.options)),
        }


@contextmanager
def reflecting(connection: Connection) -> Iterator[None]:
    """Let SQLAlchemy read the JSON in which PostgreSQL describes collations and identities, within the block."""
    if connection.dialect.name != "postgresql":
        yield
        return
    from psycopg.types.json import set_json_loads  # its driver is an extra

    session: Any = connection.connection.driver_connection
    set_json_loads(json.loads, session)
    try:
        yield
    finally:
        set_json_loads(_as_it_is, session)


def _as_it_is(text: str | bytes | None) -> str | None:
    """Pass JSON to and from a column as text: Python's numbers would lose digits."""
    return text.decode() if isinstance(text, bytes) else text


def _dialect(what: str, url: URL) -> str:
    name, _, driver = url.drivername.partition("+")
    if name not in DIALECTS:
        raise OptionError(
            f"{what} does not support {name!r}. Supported are postgresql, sqlite, mysql and mariadb."
            f"{closest(name, DIALECTS)}"
        )
    dialect = DIALECTS[name]
    known = DRIVERS[dialect].partition("+")[2]
    if driver and driver != known:
        raise OptionError(f"{what} uses the driver {known} for {name}, not {driver}; write {name}://..")
    return dialect


def _check_options(what: str, dialect: str, options: Mapping[str, Any]) -> None:
    allowed = OPTIONS[dialect]
    for name, value in options.items():
        if name not in allowed:
            raise OptionError(
                f"{what} has no option {name!r} for {dialect}.{closest(name, allowed)} "
                f"Options of the client are {', '.join(sorted(allowed))}."
            )
        if isinstance(value, Secret):
            raise OptionError(f"{what}: option {name!r} cannot be a secret; give its value.")


def _sqlite_file(what: str, database: str | None) -> str:
    if not database or database == ":memory:" or database.startswith("file:"):
        raise OptionError(f"{what}: an SQLite database must be a file; write sqlite:///path/to/file.")
    return os.path.abspath(os.path.expanduser(database))


def _settings(dialect: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the client's settings. Raises ``OptionError`` for a missing file of trusted certificates."""
    check_database_authority(options)
    if dialect == "postgresql":
        # Detect a cut network; times without a zone are UTC on both sides.
        silence = {
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": LONGEST_SILENCE_MS,
        }
        fixed = {"application_name": "epochal", "client_encoding": "utf8", "options": "-c timezone=UTC"}
        return {"connect_timeout": 10, **options, **silence, **fixed}
    if dialect == "mysql":
        # Strict: a value that does not fit is an error and never truncated.
        begin = "SET time_zone='+00:00', sql_mode=CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')"
        longest = LONGEST_SILENCE_MS // 1000
        return {
            "connect_timeout": 10,
            **options,
            "charset": "utf8mb4",
            "init_command": begin,
            "read_timeout": 20 * longest,
            "write_timeout": longest,
        }
    return {"timeout": BUSY_SECONDS, **options}


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # pysqlite's own transactions begin too late; with isolation_level None SQLAlchemy's begin event begins them.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    reading = connection.get_execution_options().get("epochal_reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
