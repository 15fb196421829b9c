"""Database source, table and sinks: PostgreSQL, SQLite, MariaDB and MySQL.

``url`` must not contain a password; ``password=secret("env:NAME")`` refers to it. The connectors use the database's
Python driver and need no JDBC driver. Executors read slices, a large one in several tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.connectors.sink_modes import (
    EXACTLY_ONCE,
    Mode,
    check_delivery,
    described,
    described_delivery,
    taken_by_keys,
)
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.errors import OptionError
from epochal.pipeline.definitions import (
    SinkDefinition,
    SourceDefinition,
    TableDefinition,
    check_flag,
    check_positive,
    refresh_interval,
)
from epochal.secrets import Secret

if TYPE_CHECKING:
    from epochal.backends.dbms import DatabaseAddress, Writing

MOST_TABLE_ROWS = 1_000_000


def sink(
    url: str,
    table: str,
    *,
    keys: str | Sequence[str] = (),
    operation: str | None = None,
    order_by: str | None = None,
    keep_newer: bool = True,
    columns: Mapping[str, str | None] | None = None,
    mode: Mode = "append",
    create: bool = False,
    delivery: Delivery | None = None,
    shards: int = 1,
    password: Secret | None = None,
    **options: Any,
) -> SinkDefinition:
    """Write rows to a table, with one transaction per epoch. Delivery is exactly once by default.

    - ``keys``: key columns. A row replaces the row with the same keys. Without keys, rows are inserted. If an epoch
      contains several rows with the same keys, the greatest by ``order_by`` is written; without ``order_by``, the last.
    - ``operation``: column with ``insert``, ``upsert`` or ``delete`` for each row, not written. Requires ``keys``.
    - ``order_by``: column that orders the rows with the same keys. A row of a later epoch that orders lower neither
      replaces nor deletes a row of the table. ``keep_newer=False`` limits ``order_by`` to the rows of one epoch.
      Requires ``keys``.
    - ``columns``: maps column names of the stream to column names of the table; ``None`` omits a column.
    - ``mode``: ``append`` accepts append-only streams and, if ``keys`` are their key columns, upsert streams (such as
      the result of ``aggregate``). ``updates`` accepts any changed rows; without ``keys``, each is inserted.
    - ``create``: create the table if it is missing.
    - ``delivery``: ``at_least_once`` and, with ``keys``, ``idempotent`` bypass the write-ahead log: tasks write to the
      table as they run, and rows of an epoch that is run again are written again. Default: the application's
      ``guarantee``.
    - ``shards``: number of transactions per epoch, applied concurrently by processes beside the driver. Each has the
      rows of its own keys and becomes visible separately. Not for SQLite.
    - ``options``: options of the database client (``sslmode``, ``connect_timeout``, ..).

    Raises ``OptionError``.
    """
    what = "dbms.sink"
    deliveries: tuple[Delivery, ...] = ("exactly_once", "at_least_once", *(("idempotent",) if keys else ()))
    check_delivery(what, delivery, deliveries, "without keys a repeated row is inserted twice")
    address, writing = _arguments(
        what, url, table, keys, operation, order_by, keep_newer, columns, create, password, options
    )
    _check_shards(what, shards, address, writing, mode, delivery)
    return SinkDefinition(
        kind="dbms",
        make=partial(_backend, address, replace(writing, shards=shards)),
        description={
            **_described(address, writing),
            **described(mode),
            **described_delivery(delivery),
            **({"shards": shards} if shards > 1 else {}),
        },
        takes=taken_by_keys(what, mode, "keys", writing.keys),
        deliveries=deliveries,
        delivery=delivery,
    )


def two_phase_sink(
    url: str,
    table: str,
    *,
    keys: str | Sequence[str] = (),
    operation: str | None = None,
    order_by: str | None = None,
    keep_newer: bool = True,
    columns: Mapping[str, str | None] | None = None,
    mode: Mode = "append",
    create: bool = False,
    delivery: Delivery | None = None,
    password: Secret | None = None,
    **options: Any,
) -> SinkDefinition:
    """Write rows to a PostgreSQL table with two-phase commit. Arguments as in :func:`sink`.

    The database checks all rows of an epoch before the commit decision. Tasks write in prepared transactions, and the
    commit commits them one subtask after the other. The server requires ``max_prepared_transactions`` above 0. Rows
    with the same keys must come from one subtask. ``delivery``: only ``exactly_once``. Raises ``OptionError``.
    """
    what = "dbms.two_phase_sink"
    if "shards" in options:
        raise OptionError(f"{what} has no option 'shards': each of its subtasks already writes in its own transaction.")
    check_delivery(what, delivery, EXACTLY_ONCE, "its rows are prepared before the decision; dbms.sink can do less")
    address, writing = _arguments(
        what, url, table, keys, operation, order_by, keep_newer, columns, create, password, options
    )
    if address.dialect != "postgresql":
        raise OptionError(f"{what} supports only PostgreSQL, not {address.place}. Use dbms.sink.")
    return SinkDefinition(
        kind="postgresql-two-phase",
        make=partial(_two_phase_backend, address, writing),
        description={**_described(address, writing), **described(mode)},
        takes=taken_by_keys(what, mode, "keys", writing.keys),
    )


def source(
    url: str,
    table: str,
    column: str,
    *,
    columns: Sequence[str] | None = None,
    settle_seconds: float = 1.0,
    partitions: int = 4,
    bounded: bool = False,
    punctuation: str | None = None,
    password: Secret | None = None,
    **options: Any,
) -> SourceDefinition:
    """Read the rows of a table in slices of an increasing column: a number, a time or a date, never null.

    Writers may only add rows, each with a greater value of the column than all existing rows. A row that appears later
    with a value of a past slice is not skipped silently: the source fails with an error that names the range.

    - ``columns``: columns to read. Default: all.
    - ``settle_seconds``: maximum time that a writer takes between assigning a value and committing it. A value can end
      a slice once it has been visible for this time.
    - ``partitions``: number of tasks that read a large slice.
    - ``bounded``: read only the rows that exist when the run starts, then end.
    - ``punctuation``: condition in the database's SQL, such as ``kind = 'end of day'``. Epochs end only at rows that
      satisfy it.

    Raises ``OptionError``.
    """
    from epochal.backends.dbms import DatabaseAddress
    from epochal.connectors.dbms.table_source import DbmsSource, Reading

    what = "dbms.source"
    address = DatabaseAddress.parse(what, url, password, options)
    _check_table(what, table)
    if not column:
        raise OptionError(f"{what} requires an increasing column, such as column='id'.")
    if settle_seconds != 0:
        check_positive(what, "settle_seconds", settle_seconds, whole=False)
    check_positive(what, "partitions", partitions, whole=True)
    check_flag(what, "bounded", bounded)
    if punctuation is not None and not punctuation.strip():
        raise OptionError(f"{what}: punctuation must be an SQL condition, such as \"kind = 'end of day'\".")
    reading = Reading(address, table, tuple(columns) if columns is not None else None)
    return SourceDefinition(
        kind="dbms",
        make=partial(DbmsSource, reading, column, settle_seconds, partitions, bounded=bounded, punctuation=punctuation),
        description={
            "database": address.place,
            "table": table,
            "column": column,
            **({"bounded": True} if bounded else {}),
            **({"punctuation": punctuation} if punctuation is not None else {}),
        },
    )


def table(
    url: str,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    max_rows: int = MOST_TABLE_ROWS,
    refresh: str | None = None,
    password: Secret | None = None,
    **options: Any,
) -> TableDefinition:
    """Read all rows that a table holds when an attempt starts, as a static table for joins.

    The driver reads the rows in one query.

    - ``max_rows``: maximum number of rows, as they pass through the driver's memory. More rows are an error.
    - ``refresh``: interval in epoch time after which the next epoch reads the table again, such as ``"1 hour"``.

    Raises ``OptionError``.
    """
    from epochal.backends.dbms import DatabaseAddress
    from epochal.connectors.dbms.reading import Reading, read_table

    address = DatabaseAddress.parse("dbms.table", url, password, options)
    _check_table("dbms.table", table)
    check_positive("dbms.table", "max_rows", max_rows, whole=True)
    reading = Reading(address, table, tuple(columns) if columns is not None else None)
    return TableDefinition(
        kind="dbms",
        read=partial(read_table, reading, max_rows),
        description={"database": address.place, "table": table},
        refresh=refresh_interval("dbms.table", refresh),
    )


def _arguments(
    what: str,
    url: str,
    table: str,
    keys: str | Sequence[str],
    operation: str | None,
    order_by: str | None,
    keep_newer: bool,
    columns: Mapping[str, str | None] | None,
    create: bool,
    password: Secret | None,
    options: Mapping[str, Any],
) -> tuple[DatabaseAddress, Writing]:
    from epochal.backends.dbms import DatabaseAddress, Writing

    _check_spelling(what, options)
    address = DatabaseAddress.parse(what, url, password, options)
    _check_table(what, table)
    named = (keys,) if isinstance(keys, str) else tuple(keys)
    for option, value in (("operation", operation), ("order_by", order_by)):
        if value is not None and not named:
            raise OptionError(f"{what}: {option} requires keys, which identify a row: keys='id'.")
    check_flag(what, "keep_newer", keep_newer)
    if not keep_newer and order_by is None:
        raise OptionError(f"{what}: keep_newer=False needs order_by, whose order it limits to one epoch.")
    writing = Writing(table, named, operation, order_by, tuple(sorted((columns or {}).items())), create, keep_newer)
    return address, writing


def _check_shards(
    what: str, shards: int, address: DatabaseAddress, writing: Writing, mode: Mode, delivery: Delivery | None
) -> None:
    """Check the option ``shards``. Raises ``OptionError`` for a sink that several transactions cannot write."""
    check_positive(what, "shards", shards, whole=True)
    if shards == 1:
        return
    if address.dialect == "sqlite":
        raise OptionError(f"{what}: SQLite has one writer at a time, so that shards={shards} has no use. Set shards=1.")
    if delivery not in (None, "exactly_once"):
        raise OptionError(
            f"{what}: with delivery={delivery!r} tasks write to the table themselves, so that shards={shards} has no "
            "effect. Set shards=1."
        )
    if mode == "updates" and not writing.keys:
        raise OptionError(
            f"{what}: shards={shards} with mode='updates' needs keys: without them, several transactions would insert "
            "the changes of a row in any order. Set keys, or shards=1."
        )


def _check_spelling(what: str, options: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` for a misspelt option of the sink, with the closest of the sink's own options."""
    from epochal.declarations.names import closest

    own = ("keys", "operation", "order_by", "keep_newer", "columns", "create", "delivery", "shards", "password")
    for name in options:
        if closest(name, own):
            raise OptionError(f"{what} has no option {name!r}.{closest(name, own)}")


def _check_table(what: str, table: str) -> None:
    if not table.strip() or table.startswith(".") or table.endswith("."):
        raise OptionError(f"{what} needs a table, 'flights' or with its schema 'public.flights'; got {table!r}.")


def _described(address: DatabaseAddress, writing: Writing) -> dict[str, Any]:
    found: dict[str, Any] = {"database": address.place, "table": writing.table}
    if writing.keys:
        found["keys"] = list(writing.keys)
    return found


def _backend(address: DatabaseAddress, writing: Writing, place: SinkPlace) -> SinkBackend:
    from epochal.backends.dbms import DbmsBackend

    return DbmsBackend(place, address, writing)


def _two_phase_backend(address: DatabaseAddress, writing: Writing, place: SinkPlace) -> SinkBackend:
    try:
        from epochal.backends.postgresql_two_phase import PostgresqlTwoPhaseBackend
    except ModuleNotFoundError:
        raise OptionError(
            "The driver for postgresql is not installed: pip install 'epochal[postgresql]', where the driver and the "
            "executors run."
        ) from None
    return PostgresqlTwoPhaseBackend(place, address, writing)
