"""Loading a catalog from a backup, into an empty database."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from epochal.errors import CatalogVersion, Conflict
from epochal.service.catalog import dumps
from epochal.service.catalog.checks import check_usable
from epochal.service.catalog.database import Database
from epochal.service.catalog.installations import InstallationRepository
from epochal.service.catalog.migration import is_current, knows_revision, upgrade
from epochal.snapshots.backup_format import Backups, Index


def check_loadable(database: Database, index: Index) -> None:
    """Raises ``CatalogVersion`` for a backup of a later version, ``Conflict`` for a database that holds a catalog;
    ``EnvironmentProblem`` for one that cannot hold one."""
    if not knows_revision(index.revision):
        raise CatalogVersion(
            f"Backup {index.id} was made by Epochal {index.version}, whose catalog (revision {index.revision}) this "
            "version does not know. Restore it with that version, or a later one."
        )
    check_usable(database)
    with database.reading() as session:
        _check_empty(session.connection(), database)


def restored_from(database: Database) -> str | None:
    """The incarnation of a catalog that is there already; ``None``: there is none, or it was never restored."""
    with database.reading() as session:
        if dumps.first_with_rows(session.connection()) is None or not is_current(database):
            return None
        row = InstallationRepository(session).find()
        return row.incarnation if row is not None and row.restored_at is not None else None


def load_backup(session: Session, backups: Backups, index: Index) -> None:
    """All rows, in the tables of this version. To be called within ``Database.migrating``.

    Raises ``Conflict`` for a catalog that is not empty (any more), ``FileMissing``, ``FileCorrupt``.
    """
    connection = session.connection()
    _check_empty(connection, None)
    dumps.drop_all(connection)
    upgrade(connection, index.revision)
    for table in index.tables:
        dumps.load(connection, table.name, table.columns, backups.read_part(table.part))
    upgrade(connection, "head")
    dumps.continue_numbering(connection)


def _check_empty(connection: Connection, database: Database | None) -> None:
    table = dumps.first_with_rows(connection)
    if table is not None:
        where = "The database" if database is None else f"The catalog {database.place}"
        raise Conflict(
            f"{where} is not empty: it has rows in {table}. A backup is restored into an empty database "
            "(--database-url, --home); to give this one up, stop its control planes and drop its tables."
        )
