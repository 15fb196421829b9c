"""Backups of the catalog: its tables as JSON, read in one transaction, and loaded into an empty database."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, Column, Connection, DateTime, LargeBinary, MetaData, Table, func, inspect, select, text
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import CatalogVersion, Conflict
from epochal.service.catalog.checks import check_usable
from epochal.service.catalog.database import Database
from epochal.service.catalog.installations import InstallationRepository
from epochal.service.catalog.migration import is_current, is_known_revision, upgrade
from epochal.service.catalog.models import (
    Application,
    Artifact,
    Base,
    Branch,
    Epoch,
    IdempotencyKey,
    Lease,
    NodeRow,
    SessionLink,
    Upload,
    UserSession,
)
from epochal.service.catalog.retention import RetentionRepository
from epochal.service.catalog.store_files import StoreFiles
from epochal.service.catalog.types import UtcDateTime, now
from epochal.snapshots.backup_format import BackedUpApplication, Backups, ColumnKind, Index


@dataclass(frozen=True)
class BackedUpArtifact:
    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class BackedUp:
    """``kept``: snapshots whose files the backup contains. ``prepared``: epochs whose write-ahead log a sink may not
    have applied yet. ``artifacts``: those with a file in the store."""

    installation: str
    incarnation: str
    kept: Mapping[EpochKey, ManifestReference]
    prepared: Sequence[EpochKey]
    artifacts: Sequence[BackedUpArtifact]
    logs: Sequence[str]
    """Paths of drivers' logs in the store."""
    applications: tuple[BackedUpApplication, ...]


@dataclass(frozen=True)
class DumpedTable:
    name: str
    columns: dict[str, ColumnKind]
    rows: Iterator[dict[str, Any]]


class BackupRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def described(self) -> BackedUp:
        """Raises ``Conflict`` before the first start."""
        row = InstallationRepository(self._session).find()
        if row is None:
            raise Conflict("The catalog was never started with a store, so it has no data to back up.")
        prepared = select(Epoch.branch, Epoch.epoch).where(Epoch.state == State.PREPARED.value)
        standing = (
            select(Application.name, Application.branch, Branch.head_epoch)
            .join(Branch, Branch.id == Application.branch)
            .where(Application.deleted_at.is_(None))
            .order_by(Application.name)
        )
        artifacts = self._session.scalars(select(Artifact).order_by(Artifact.sha256)).all()
        return BackedUp(
            installation=row.id,
            incarnation=row.incarnation,
            kept=RetentionRepository(self._session).known(now()).kept,
            prepared=[EpochKey(branch, epoch) for branch, epoch in self._session.execute(prepared)],
            artifacts=[BackedUpArtifact(row.path, row.sha256, row.bytes) for row in artifacts if row.path is not None],
            logs=StoreFiles(self._session).named("log"),
            applications=tuple(
                BackedUpApplication(name=name, branch=branch, epoch=epoch)
                for name, branch, epoch in self._session.execute(standing)
            ),
        )

    def tables(self, kept: Mapping[EpochKey, ManifestReference], moment: datetime) -> Iterator[DumpedTable]:
        """Tables in the order in which their rows have to be read. Epochs whose snapshots are not in the backup are
        dumped as collected."""
        for table in dumped_tables():
            dumped = dumped_rows(self._session, table)
            if table is Epoch.__table__:
                dumped = as_collected(dumped, kept, moment)
            yield DumpedTable(table.name, kinds_of(table), dumped)


LEFT_OUT = frozenset(row.__tablename__ for row in (IdempotencyKey, Lease, NodeRow, SessionLink, Upload, UserSession))
"""Tables without meaning after a restore: stored answers, liveness of processes, unfinished uploads, logins."""
_AT_ONCE = 500


def dumped_tables() -> list[Table]:
    """Tables of a backup, in the order of their foreign keys."""
    return [table for table in Base.metadata.sorted_tables if table.name not in LEFT_OUT]


def kinds_of(table: Table) -> dict[str, ColumnKind]:
    return {column.name: _kind(column) for column in table.columns}


def dumped_rows(session: Session, table: Table) -> Iterator[dict[str, Any]]:
    """All rows, as JSON."""
    kinds = kinds_of(table)
    order = list(table.primary_key.columns)
    for row in session.execute(select(table).order_by(*order).execution_options(yield_per=_AT_ONCE)).mappings():
        yield {name: _encoded(kinds[name], value) for name, value in row.items()}


def as_collected(
    epochs: Iterable[dict[str, Any]], kept: Iterable[EpochKey], moment: datetime
) -> Iterator[dict[str, Any]]:
    """Rows of epochs in which snapshots other than ``kept`` are marked as collected, since the backup lacks their
    files."""
    there = {(key.branch, key.epoch) for key in kept}
    for row in epochs:
        decided = row["state"] in ("prepared", "committed") and row["collected_at"] is None
        if decided and (row["branch"], row["epoch"]) not in there:
            row["collected_at"] = moment.isoformat()
        yield row


def first_with_rows(connection: Connection) -> str | None:
    """The name of a catalog table that has a row; ``None`` if all are empty."""
    there = set(inspect(connection).get_table_names())
    for table in Base.metadata.sorted_tables:
        if table.name in there and connection.execute(text(f'SELECT 1 FROM "{table.name}" LIMIT 1')).first():
            return str(table.name)
    return None


def drop_all(connection: Connection) -> None:
    """Drop the tables of an empty catalog."""
    there = set(inspect(connection).get_table_names()) & {*Base.metadata.tables, "alembic_version"}
    metadata = MetaData()
    metadata.reflect(connection, only=sorted(there))
    metadata.drop_all(connection)


def load(connection: Connection, name: str, kinds: Mapping[str, ColumnKind], lines: Iterable[Mapping[str, Any]]) -> int:
    """Insert the rows of one table, at the revision of the backup; returns their number."""
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
    """Let PostgreSQL's sequences continue after the loaded values. SQLite does so automatically."""
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


def check_loadable(database: Database, index: Index) -> None:
    """Raises ``CatalogVersion`` for a backup of a later version, ``Conflict`` for a database that contains a catalog,
    ``EnvironmentProblem`` for one that cannot contain one."""
    if not is_known_revision(index.revision):
        raise CatalogVersion(
            f"Backup {index.id} was created by Epochal {index.version}, whose catalog (revision {index.revision}) "
            "this version does not support. Restore it with that version, or a later one."
        )
    check_usable(database)
    with database.reading() as session:
        _check_empty(session.connection(), database)


def restored_from(database: Database) -> str | None:
    """The incarnation of a restored catalog; ``None`` if the database is empty or its catalog was never restored."""
    with database.reading() as session:
        if first_with_rows(session.connection()) is None or not is_current(database):
            return None
        row = InstallationRepository(session).find()
        return row.incarnation if row is not None and row.restored_at is not None else None


def load_backup(session: Session, backups: Backups, index: Index) -> None:
    """Load all rows and migrate them to this version, within ``Database.migrating``.

    Raises ``Conflict`` if the catalog is not empty, ``FileMissing``, ``FileCorrupt``.
    """
    connection = session.connection()
    _check_empty(connection, None)
    drop_all(connection)
    upgrade(connection, index.revision)
    for table in index.tables:
        load(connection, table.name, table.columns, backups.read_part(table.part))
    upgrade(connection, "head")
    continue_numbering(connection)


def _check_empty(connection: Connection, database: Database | None) -> None:
    table = first_with_rows(connection)
    if table is not None:
        where = "The database" if database is None else f"The catalog {database.place}"
        raise Conflict(
            f"{where} is not empty: it has rows in {table}. A backup is restored into an empty database "
            "(--database-url, --home); to replace this one, stop its control planes and drop its tables."
        )
