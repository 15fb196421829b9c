"""Databases as source, table and sink: PostgreSQL, SQLite, MariaDB and MySQL.

``url`` never holds a password: ``password=secret("env:NAME")`` names where it is. Rows are read through the database's
Python driver, in the executors where a slice is large; no JDBC driver is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.connectors.deliveries import EXACTLY_ONCE, check_delivery, described_delivery
from epochal.connectors.sink_modes import Mode, described, taken_by_keys
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
    password: Secret | None = None,
    **options: Any,
) -> SinkDefinition:
    """Rows into a table, an epoch in one transaction. No row is missing or doubled, whatever fails.

    Without ``keys`` rows are inserted. With ``keys`` a row replaces the one with the same keys; ``operation`` names a
    column that says ``insert``, ``upsert`` or ``delete`` for each row, and is not written. Of several rows of one epoch
    with the same keys the last counts: the greatest by ``order_by``, else the last that was written. With ``order_by``,
    a lesser row of a later epoch neither replaces nor deletes a greater row of the table; with ``keep_newer=False``,
    ``order_by`` orders the rows of one epoch only. ``columns`` maps the stream's names to the table's, ``None`` leaves
    a column out. ``create`` makes a missing table. ``options`` are the database client's (``sslmode``,
    ``connect_timeout``, ..). Raises ``OptionError``.

    ``mode`` ``append`` takes rows that stay, and new values of keys (what ``aggregate`` gives) where ``keys`` are their
    key columns. ``updates`` takes any rows that changed: without ``keys`` each is inserted.

    ``delivery``: ``at_least_once`` and, with ``keys``, ``idempotent`` leave the write-ahead log out: tasks write to the
    table as they run, and rows of an epoch that is run again are written again. Without it, as the application's
    ``guarantee`` says.
    """
    what = "dbms.sink"
    deliveries: tuple[Delivery, ...] = ("exactly_once", "at_least_once", *(("idempotent",) if keys else ()))
    check_delivery(what, delivery, deliveries, "without keys a row that is there again is one more")
    address, writing = _arguments(
        what, url, table, keys, operation, order_by, keep_newer, columns, create, password, options
    )
    return SinkDefinition(
        kind="dbms",
        make=partial(_backend, address, writing),
        description={**_described(address, writing), **described(mode), **described_delivery(delivery)},
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
    """As :func:`sink`, for PostgreSQL alone: the database checks all rows of an epoch before the epoch is decided.

    Tasks write in transactions that they prepare; the commit commits these, one subtask after the other. The server
    needs ``max_prepared_transactions`` above 0. Rows with the same keys must come from one subtask. ``delivery`` is
    ``exactly_once``.
    """
    what = "dbms.two_phase_sink"
    check_delivery(what, delivery, EXACTLY_ONCE, "its rows are prepared before the decision; dbms.sink can do less")
    address, writing = _arguments(
        what, url, table, keys, operation, order_by, keep_newer, columns, create, password, options
    )
    if address.dialect != "postgresql":
        raise OptionError(f"{what} is PostgreSQL's; {address.place} is not. Use dbms.sink there.")
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
    """The rows of a table by slices of an increasing column: a number, a time or a date, never null.

    Rows may only be added, each with a greater value than all that were there before. A value counts as settled, and
    may end a slice, once it has been seen for ``settle_seconds``: as long as a writer may take from drawing the value
    to its commit. A row that comes later still is not skipped in silence: the source stops, naming it.
    ``columns`` limits what is read; ``partitions`` is how many tasks read a large slice. ``bounded``: the rows that are
    there when the run begins are all that there are, and the source ends with them. ``punctuation`` is a condition in
    the database's SQL (``kind = 'end of day'``): a row that fulfils it ends an epoch, and nothing else does. Raises
    ``OptionError``.
    """
    from epochal.backends.dbms import DatabaseAddress
    from epochal.connectors.dbms.table_source import DbmsSource, Reading

    what = "dbms.source"
    address = DatabaseAddress.parse(what, url, password, options)
    _check_table(what, table)
    if not column:
        raise OptionError(f"{what} needs the column that increases, such as column='id'.")
    if settle_seconds != 0:
        check_positive(what, "settle_seconds", settle_seconds, whole=False)
    check_positive(what, "partitions", partitions, whole=True)
    check_flag(what, "bounded", bounded)
    if punctuation is not None and not punctuation.strip():
        raise OptionError(f"{what}: punctuation is a condition of SQL, such as \"kind = 'end of day'\".")
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
    """All rows that a table holds when an attempt starts, to join with. They are read by the driver, in one query.

    More than ``max_rows`` are an error: they pass through the driver's memory. ``refresh``: read it again in the first
    epoch that is this much later by epoch time, such as ``"1 hour"``. Raises ``OptionError``.
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
            raise OptionError(f"{what}: {option} needs keys, which say what row is meant: keys='id'.")
    check_flag(what, "keep_newer", keep_newer)
    if not keep_newer and order_by is None:
        raise OptionError(f"{what}: keep_newer=False needs order_by, whose order it limits to one epoch.")
    writing = Writing(table, named, operation, order_by, tuple(sorted((columns or {}).items())), create, keep_newer)
    return address, writing


def _check_spelling(what: str, options: Mapping[str, Any]) -> None:
    """A misspelt option of the sink itself is answered with the one that was meant, not with the client's."""
    from epochal.declarations.names import closest

    own = ("keys", "operation", "order_by", "keep_newer", "columns", "create", "delivery", "password")
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
