"""Migration of a catalog to this version's schema.

An empty or older catalog is migrated. A newer catalog is used unchanged if it declares that this version can read it;
otherwise it is refused.

Most starts have nothing to migrate. The names of migration files begin with their revisions, so that Alembic is
imported only if a migration is pending.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, column, inspect, select, table, text, update

import epochal.migrations
from epochal.background.retries import attempts
from epochal.errors import CatalogUnavailable, CatalogVersion
from epochal.service.catalog.database import Database
from epochal.service.catalog.leases import LockKey, advisory_lock
from epochal.service.catalog.models import Base

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    from epochal.migrations.expanding import Index

FOLDER = Path(epochal.migrations.__file__).parent
_TRIES_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_LOOK_SECONDS = 0.5
_LOCK_NOT_AVAILABLE = "55P03"
_INSTALLATION = table("installation", column("oldest_reader"))
_APPLIED = table("alembic_version", column("version_num"))
_UNFINISHED = text(
    "SELECT EXISTS (SELECT FROM pg_constraint WHERE NOT convalidated AND connamespace = current_schema()::regnamespace)"
    " OR EXISTS (SELECT FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
    " WHERE NOT indisvalid AND relnamespace = current_schema()::regnamespace)"
)
_INDEXES = {
    "postgresql": text("SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()"),
    "sqlite": text("SELECT name FROM sqlite_master WHERE type = 'index'"),
}

logger = logging.getLogger(__name__)


def migrate(url: str) -> str:
    """Migrate the catalog at ``url`` to this version and return its revision.

    Raises ``CatalogVersion`` for a catalog of a later version that this one cannot use, ``CatalogUnavailable``,
    ``OptionError``.
    """
    database = Database(url)
    try:
        return migrate_database(database)
    finally:
        database.close()


def migrate_database(database: Database) -> str:
    """Like :func:`migrate`. SQLite runs all migrations in one transaction. PostgreSQL runs each in a separate one, to
    limit the time of table locks; the next start continues an interrupted migration."""
    with database.reading() as session:
        if _is_done(session.connection()):
            return newest_revision()
    with advisory_lock(database, LockKey.MIGRATION):
        with database.reading() as session:
            found = refuse_newer(session.connection())
        pending = _pending(found)
        if pending is None:
            logger.warning("the catalog is at revision %s of a later version, which supports this version", found)
            return str(found)
        if pending:
            logger.info("migrating the catalog from %s to %s", found or "empty", pending[-1])
        one_by_one = database.engine.dialect.name == "postgresql" and found is not None
        for revision in pending if one_by_one else pending[-1:]:
            _upgrade(database, revision)
        _finish(database)
        return newest_revision()


def check_current(database: Database) -> None:
    """Raises ``CatalogVersion`` unless this version can use the catalog."""
    with database.reading() as session:
        found = refuse_newer(session.connection())
    if is_behind(found):
        raise CatalogVersion(
            f"The catalog is at revision {found or 'none'}, this version of Epochal needs {newest_revision()}; "
            "run `epochal up` or `epochal migrate`."
        )


def wait_until_current(database: Database, seconds: float, over: threading.Event) -> None:
    """Wait until another process has migrated the catalog, or ``over`` is set. Raises ``CatalogVersion`` after
    ``seconds``, and immediately for a newer catalog that this version cannot use."""
    until, said = time.monotonic() + seconds, False
    while not is_current(database):
        if time.monotonic() >= until:
            check_current(database)
        if not said:
            logger.info("waiting until a control plane has migrated the catalog")
            said = True
        if over.wait(_LOOK_SECONDS):
            return


def is_current(database: Database) -> bool:
    """Return whether this version can use the catalog's tables: its own, or those of a later version that supports it.
    Raises ``CatalogVersion`` for those of any other later version."""
    with database.reading() as session:
        return not is_behind(refuse_newer(session.connection()))


def is_behind(revision: str | None) -> bool:
    """Return whether tables of that revision (``None``: no tables) have to be migrated."""
    return bool(_pending(revision))


def is_known_revision(revision: str) -> bool:
    """Return whether this version can migrate tables of that revision."""
    return revision in _revisions()


def upgrade(connection: Connection, revision: str) -> None:
    """Migrate the tables to a revision, in the caller's transaction. Deferred indexes are built by the next start."""
    from alembic import command

    command.upgrade(_configuration(connection), revision)


def newest_revision() -> str:
    """The revision of this version's tables."""
    return _revisions()[-1]


def oldest_reader(revision: str | None = None) -> str:
    """The revision of the oldest version that can use the tables of ``revision`` (by default, of the newest)."""
    for script in _scripts().walk_revisions("base", revision or newest_revision()):
        stated: str | None = getattr(script.module, "oldest_reader", None)
        if stated is not None:
            return stated
    return _revisions()[0]


def refuse_newer(connection: Connection) -> str | None:
    """The catalog's revision; ``None`` if it is empty. Raises ``CatalogVersion`` if this version cannot use it."""
    found = _revision(connection)
    if found is None or is_known_revision(found):
        return found
    oldest = _says_oldest_reader(connection)
    if oldest is None or not is_known_revision(oldest):
        since = "" if oldest is None else f", and can be used by versions from revision {oldest} on"
        raise CatalogVersion(
            f"The catalog is at revision {found}, which is newer than {newest_revision()}, the newest that this "
            f"version of Epochal supports{since}. Install the version of Epochal that created it, or a later one; "
            "to go back, restore a backup made before the upgrade."
        )
    return found


def _is_done(connection: Connection) -> bool:
    """Return whether the catalog has this version's tables and no deferred step is pending."""
    if _revision(connection) != newest_revision():
        return False
    dialect = connection.dialect.name
    if dialect == "postgresql" and connection.scalar(_UNFINISHED):
        return False
    expected = {str(index.name) for each in Base.metadata.tables.values() for index in each.indexes}
    return expected <= set(connection.scalars(_INDEXES[dialect]))


def _upgrade(database: Database, revision: str) -> None:
    from alembic import command

    from epochal.migrations.expanding import bound_lock_waits

    for attempt in attempts(_PAUSE_SECONDS, timeout=_TRIES_SECONDS):
        try:
            with database.migrating() as session:
                connection = session.connection()
                refuse_newer(connection)
                bound_lock_waits(connection)
                command.upgrade(_configuration(connection), revision)
                connection.execute(update(_INSTALLATION).values(oldest_reader=oldest_reader(revision)))
            return
        except CatalogUnavailable as error:
            if not _waited_for_a_lock(error):
                raise
            if attempt.is_last:
                raise CatalogUnavailable(
                    f"Migration {revision}: a table of the catalog was locked for {_TRIES_SECONDS:g} s by a long "
                    "transaction (see pg_stat_activity). End that transaction, and repeat `epochal migrate`."
                ) from error
            logger.info("migration %s waits for a lock and is retried", revision)


def _finish(database: Database) -> None:
    from epochal.migrations.expanding import finish

    indexes: Sequence[Index] = [
        index for script in _scripts().walk_revisions() for index in getattr(script.module, "indexes", ())
    ]
    if database.engine.dialect.name == "postgresql":
        with database.without_transaction() as connection:
            finish(connection, indexes)
    elif indexes:
        with database.migrating() as session:
            finish(session.connection(), indexes)


def _waited_for_a_lock(error: CatalogUnavailable) -> bool:
    original: Any = getattr(error.__cause__, "orig", None)
    return getattr(original, "sqlstate", None) == _LOCK_NOT_AVAILABLE


def _pending(found: str | None) -> Sequence[str] | None:
    """Pending revisions, oldest first; ``None`` if the catalog is newer than this version."""
    revisions = _revisions()
    if found is None:
        return revisions
    return revisions[revisions.index(found) + 1 :] if found in revisions else None


def _revision(connection: Connection) -> str | None:
    """The revision of the catalog's tables; ``None`` if it is empty."""
    if not inspect(connection).has_table(_APPLIED.name):
        return None
    return connection.scalar(select(_APPLIED.c.version_num))


def _says_oldest_reader(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_INSTALLATION.name):
        return None
    return connection.execute(select(_INSTALLATION.c.oldest_reader)).scalar()


def _revisions() -> Sequence[str]:
    """All revisions of this version, oldest first."""
    return _revisions_in(FOLDER)


@cache
def _revisions_in(folder: Path) -> Sequence[str]:
    return sorted(path.name.partition("_")[0] for path in (folder / "versions").glob("[0-9]*_*.py"))


def _scripts() -> ScriptDirectory:
    return _scripts_in(FOLDER)


@cache
def _scripts_in(_folder: Path) -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_configuration(None))


def _configuration(connection: Connection | None) -> Config:
    from alembic.config import Config

    configuration = Config()
    configuration.set_main_option("script_location", str(FOLDER))
    configuration.attributes["connection"] = connection
    return configuration
