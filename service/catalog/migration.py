"""Bringing a catalog to this version's tables: an empty or older one is migrated, a newer one refused."""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

import epochal.migrations
from epochal.errors import CatalogVersion
from epochal.service.catalog.database import Database

_LOCK = 0x65706F63
"""Control planes that start at once on PostgreSQL migrate one after the other; on SQLite the write lock does it."""

logger = logging.getLogger(__name__)


def migrate(url: str) -> str:
    """Migrate the catalog at ``url`` to this version and return its revision.

    Raises ``CatalogVersion`` for a catalog of a later version, ``CatalogUnavailable``, ``OptionError``.
    """
    database = Database(url)
    try:
        return migrate_database(database)
    finally:
        database.close()


def migrate_database(database: Database) -> str:
    """As :func:`migrate`, in one transaction: all of it or nothing."""
    with database.migrating() as session:
        connection = session.connection()
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        before = _refuse_newer(connection)
        head = newest_revision()
        if before != head:
            logger.info("migrating the catalog from %s to %s", before or "empty", head)
            command.upgrade(_configuration(connection), "head")
        return head


def check_current(database: Database) -> None:
    """Raises ``CatalogVersion`` unless the catalog has exactly this version's tables."""
    with database.reading() as session:
        found = _refuse_newer(session.connection())
    if found != newest_revision():
        raise CatalogVersion(
            f"The catalog is at revision {found or 'none'}, this version of Epochal needs {newest_revision()}; "
            "run `epochal up` or `epochal migrate`."
        )


def newest_revision() -> str:
    """The revision of this version's tables."""
    head = ScriptDirectory.from_config(_configuration(None)).get_current_head()
    assert head is not None  # the package always carries at least one revision
    return head


def _refuse_newer(connection: Connection) -> str | None:
    """The catalog's revision, ``None`` when it is empty. Raises ``CatalogVersion`` when it is not one of ours."""
    found = MigrationContext.configure(connection).get_current_revision()
    if found is not None:
        try:
            ScriptDirectory.from_config(_configuration(None)).get_revision(found)
        except CommandError:
            raise CatalogVersion(
                f"The catalog is at revision {found}, which this version of Epochal does not know: it is newer than "
                f"{newest_revision()}. Install the version of Epochal that made it, or a later one."
            ) from None
    return found


def _configuration(connection: Connection | None) -> Config:
    configuration = Config()
    configuration.set_main_option("script_location", str(Path(epochal.migrations.__file__).parent))
    configuration.attributes["connection"] = connection
    return configuration
