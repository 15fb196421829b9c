"""All tables of a catalog as JSON, a row at a time, and back: into SQLite or PostgreSQL, whichever it came from."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, Column, Connection, DateTime, LargeBinary, MetaData, Table, func, inspect, select, text
from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.service.catalog.models import Base, IdempotencyKey, Lease, NodeRow, Upload
from epochal.service.catalog.types import UtcDateTime
from epochal.snapshots.backup_format import ColumnKind

LEFT_OUT = frozenset(row.__tablename__ for row in (IdempotencyKey, Lease, NodeRow, Upload))
"""Tables that mean nothing to another incarnation: answers that may be repeated, who is alive, what was arriving."""
_AT_ONCE = 500


def tables() -> list[Table]:
    """What is dumped, referred-to tables first."""
    return [table for table in Base.metadata.sorted_tables if table.name not in LEFT_OUT]


def kinds_of(table: Table) -> dict[str, ColumnKind]:
    return {column.name: _kind(column) for column in table.columns}


def rows(session: Session, table: Table) -> Iterator[dict[str, Any]]:
    """All of them, as JSON."""
    kinds = kinds_of(table)
    order = list(table.primary_key.columns)
    for row in session.execute(select(table).order_by(*order).execution_options(yield_per=_AT_ONCE)).mappings():
        yield {name: _encoded(kinds[name], value) for name, value in row.items()}


def as_collected(
    epochs: Iterable[dict[str, Any]], kept: Iterable[EpochKey], moment: datetime
) -> Iterator[dict[str, Any]]:
    """Rows of epochs, of which a backup has the files of ``kept`` alone: other snapshots cannot be read any more."""
    there = {(key.branch, key.epoch) for key in kept}
    for row in epochs:
        decided = row["state"] in ("prepared", "committed") and row["collected_at"] is None
        if decided and (row["branch"], row["epoch"]) not in there:
            row["collected_at"] = moment.isoformat()
        yield row


def first_with_rows(connection: Connection) -> str | None:
    """The name of a table of ours that has a row; ``None``: there is none."""
    there = set(inspect(connection).get_table_names())
    for table in Base.metadata.sorted_tables:
        if table.name in there and connection.execute(text(f'SELECT 1 FROM "{table.name}" LIMIT 1')).first():
            return str(table.name)
    return None


def drop_all(connection: Connection) -> None:
    """Tables of ours, which hold nothing."""
    there = set(inspect(connection).get_table_names()) & {*Base.metadata.tables, "alembic_version"}
    metadata = MetaData()
    metadata.reflect(connection, only=sorted(there))
    metadata.drop_all(connection)


def load(connection: Connection, name: str, kinds: Mapping[str, ColumnKind], lines: Iterable[Mapping[str, Any]]) -> int:
    """Insert the rows of one table, which is as it was when they were dumped; how many they are."""
    table = Table(name, MetaData(), *(_column(column, kind) for column, kind in kinds.items()))
    count, batch = 0, []
    for line in lines:
        batch.append({column: _decoded(kinds[column], value) for column, value in line.items() if column in kinds})
        if len(batch) == _AT_ONCE:
            connection.execute(table.insert(), batch)
            count, batch = count + len(batch), []
    if batch:
        connection.execute(table.insert(), batch)
    return count + len(batch)


def continue_numbering(connection: Connection) -> None:
    """Numbers that PostgreSQL gives out itself go on after those that were loaded. SQLite looks for itself."""
    if connection.dialect.name != "postgresql":
        return
    for table in Base.metadata.sorted_tables:
        column = table.autoincrement_column
        if column is None or table.name in LEFT_OUT:
            continue
        sequence = connection.execute(select(func.pg_get_serial_sequence(table.name, column.name))).scalar()
        last = connection.execute(select(func.max(column))).scalar()
        if sequence is not None and last is not None:
            connection.execute(select(func.setval(sequence, last)))


def _kind(column: Column[Any]) -> ColumnKind:
    if isinstance(column.type, UtcDateTime | DateTime):
        return "time"
    return "bytes" if isinstance(column.type, LargeBinary) else "json" if isinstance(column.type, JSON) else "plain"


def _column(name: str, kind: ColumnKind) -> Column[Any]:
    match kind:
        case "time":
            return Column(name, UtcDateTime())
        case "json":
            return Column(name, JSON(none_as_null=True))
        case "bytes":
            return Column(name, LargeBinary())
        case _:
            return Column(name)


def _encoded(kind: ColumnKind, value: Any) -> Any:
    if value is None:
        return None
    if kind == "time":
        return value.astimezone(UTC).isoformat()
    return base64.b64encode(value).decode() if kind == "bytes" else value


def _decoded(kind: ColumnKind, value: Any) -> Any:
    if value is None:
        return None
    if kind == "time":
        return datetime.fromisoformat(value)
    return base64.b64decode(value) if kind == "bytes" else value
