"""Migrations on PostgreSQL during long transactions, and after an interruption."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from epochal.errors import CatalogUnavailable
from epochal.migrations import expanding
from epochal.service.catalog import migration
from epochal.service.catalog.database import Database
from tests.kit.waiting import eventually

pytestmark = pytest.mark.server

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
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@contextmanager
def reading(database: Database) -> Iterator[None]:
    """A long transaction that has read the table and holds its snapshot."""
    engine = create_engine(database.engine.url, poolclass=NullPool, isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        connection.execute(text("SELECT count(*) FROM operations"))
        yield


def select_rows(database: Database, query: str) -> list[Any]:
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


def test_long_reader_delays_only_the_migration(
    database: Database, next_revision: str, pool: ThreadPoolExecutor
) -> None:
    with reading(database):
        migrating: Future[str] = pool.submit(migration.migrate_database, database)
        eventually(lambda: select_rows(database, WAITING) == [(1,)])
        write(database, "during")  # waits until the migration's lock request times out
        assert select_rows(database, "SELECT id FROM operations") == [("during",)]
        assert not migrating.done()
    assert migrating.result(30) == next_revision
    assert sorted(select_rows(database, CONSTRAINTS)) == [
        ("ck_operations_note", True),
        ("fk_operations_artifact", True),
    ]
    assert select_rows(database, INDEXES) == [(True,)]
    assert migration.migrate_database(database) == next_revision


def test_index_is_built_concurrently_with_readers_and_writers(
    database: Database, next_revision: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered, resume = threading.Event(), threading.Event()
    finish = migration._finish

    def paused(database: Database) -> None:
        altered.set()
        assert resume.wait(30)
        finish(database)

    monkeypatch.setattr(migration, "_finish", paused)
    migrating = pool.submit(migration.migrate_database, database)
    assert altered.wait(30)
    with reading(database):
        resume.set()
        eventually(lambda: select_rows(database, INDEXES) == [(False,)])  # waits for the reader's transaction
        write(database, "during")
        other = pool.submit(migration.migrate_database, database)  # a second control plane starts
        assert select_rows(database, "SELECT id FROM operations") == [("during",)]
    assert (migrating.result(30), other.result(30)) == (next_revision, next_revision)
    assert select_rows(database, INDEXES) == [(True,)]


def test_next_start_finishes_an_interrupted_migration(
    database: Database, next_revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "_finish", lambda database: None)
    migration.migrate_database(database)
    monkeypatch.undo()
    assert sorted(valid for _, valid in select_rows(database, CONSTRAINTS)) == [False, False]
    with database.writing() as session:
        session.execute(text("CREATE INDEX ix_operations_note ON operations (note)"))
        session.execute(
            text("UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass('ix_operations_note')")
        )
    index = expanding.Index("ix_operations_note", "operations", ("note", "id"))
    with database.without_transaction() as connection:
        expanding.finish(connection, [index])
    assert sorted(valid for _, valid in select_rows(database, CONSTRAINTS)) == [True, True]
    assert select_rows(database, INDEXES) == [(True,)]


def test_lock_that_is_never_granted_is_reported(
    database: Database, next_revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "_TRIES_SECONDS", 0.0)
    with reading(database), pytest.raises(CatalogUnavailable, match="pg_stat_activity"):
        migration.migrate_database(database)
    assert select_rows(database, "SELECT version_num FROM alembic_version") != [(next_revision,)]
