"""Migrations on PostgreSQL keep nobody waiting: beside long transactions, and when they were cut off."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from epochal.errors import CatalogUnavailable
from epochal.migrations import expanding
from epochal.service.catalog import migration
from epochal.service.catalog.database import Database
from tests.waiting import eventually

pytestmark = pytest.mark.server

NEXT = """
import sqlalchemy as sa
from alembic import op
from epochal.migrations.expanding import Index, add_check, add_foreign_key

revision = "{revision}"
down_revision = "{before}"
indexes = (Index("ix_operations_note", "operations", ("note", "id"), where="note IS NOT NULL"),)


def upgrade() -> None:
    with op.batch_alter_table("operations") as operations:
        operations.add_column(sa.Column("note", sa.Text(), nullable=True))
        operations.add_column(sa.Column("artifact", sa.String(64), nullable=True))
    add_check("operations", "ck_operations_note", "note <> ''")
    add_foreign_key("operations", "fk_operations_artifact", ["artifact"], "artifacts", ["sha256"])
"""
CONSTRAINTS = (
    "SELECT conname, convalidated FROM pg_constraint WHERE conname IN ('ck_operations_note', 'fk_operations_artifact')"
)
INDEXES = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('ix_operations_note')"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def database(postgresql_catalog_url: str) -> Iterator[Database]:
    database = Database(postgresql_catalog_url)
    yield database
    database.close()


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The revision of one more migration."""
    before = migration.newest_revision()
    folder = tmp_path / "migrations"
    shutil.copytree(migration.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9999_another.py").write_text(NEXT.format(revision="9999", before=before))
    monkeypatch.setattr(migration, "FOLDER", folder)
    monkeypatch.setattr(expanding, "LOCK_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(migration, "_PAUSE_SECONDS", 0.1)
    return "9999"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@contextmanager
def reading(database: Database) -> Iterator[None]:
    """A long transaction that has read the table, and has to see it as it was."""
    engine = create_engine(database.engine.url, poolclass=NullPool, isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        connection.execute(text("SELECT count(*) FROM operations"))
        yield


def ask(database: Database, query: str) -> list[Any]:
    with database.reading() as session:
        return [tuple(row) for row in session.execute(text(query))]


def write(database: Database, id: str) -> None:
    with database.writing() as session:
        session.execute(
            text(
                "INSERT INTO operations (id, kind, state, arguments, created_at, created_by) "
                "VALUES (:id, 'verify', 'succeeded', '{}', now(), 'me')"
            ),
            {"id": id},
        )


def test_a_long_reader_delays_a_migration_and_nobody_else(
    database: Database, another: str, pool: ThreadPoolExecutor
) -> None:
    with reading(database):
        migrating: Future[str] = pool.submit(migration.migrate_database, database)
        eventually(lambda: ask(database, WAITING) == [(1,)])
        write(database, "during")  # waits behind the migration until that gives its lock up for a while
        assert ask(database, "SELECT id FROM operations") == [("during",)]
        assert not migrating.done()
    assert migrating.result(30) == another
    assert sorted(ask(database, CONSTRAINTS)) == [("ck_operations_note", True), ("fk_operations_artifact", True)]
    assert ask(database, INDEXES) == [(True,)]
    assert migration.migrate_database(database) == another


def test_an_index_is_built_beside_readers_and_writers(
    database: Database, another: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered, go_on = threading.Event(), threading.Event()
    finish = migration._finish

    def paused(database: Database) -> None:
        altered.set()
        assert go_on.wait(30)
        finish(database)

    monkeypatch.setattr(migration, "_finish", paused)
    migrating = pool.submit(migration.migrate_database, database)
    assert altered.wait(30)
    with reading(database):
        go_on.set()
        eventually(lambda: ask(database, INDEXES) == [(False,)])  # it waits for the reader to end
        write(database, "during")
        other = pool.submit(migration.migrate_database, database)  # a second control plane starts, and waits as well
        assert ask(database, "SELECT id FROM operations") == [("during",)]
    assert (migrating.result(30), other.result(30)) == (another, another)
    assert ask(database, INDEXES) == [(True,)]


def test_what_was_cut_off_is_finished_by_the_next_start(
    database: Database, another: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "_finish", lambda database: None)
    migration.migrate_database(database)
    monkeypatch.undo()
    assert sorted(valid for _, valid in ask(database, CONSTRAINTS)) == [False, False]
    with database.writing() as session:
        session.execute(text("CREATE INDEX ix_operations_note ON operations (note)"))
        session.execute(
            text("UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass('ix_operations_note')")
        )
    index = expanding.Index("ix_operations_note", "operations", ("note", "id"))
    with database.without_transaction() as connection:
        expanding.finish(connection, [index])
    assert sorted(valid for _, valid in ask(database, CONSTRAINTS)) == [True, True]
    assert ask(database, INDEXES) == [(True,)]


def test_a_lock_that_never_comes_is_said(database: Database, another: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "_TRIES_SECONDS", 0.0)
    with reading(database), pytest.raises(CatalogUnavailable, match="pg_stat_activity"):
        migration.migrate_database(database)
    assert ask(database, "SELECT version_num FROM alembic_version") != [(another,)]
