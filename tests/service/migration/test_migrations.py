"""Migrations on SQLite and PostgreSQL: the resulting schema, existing data, and catalogs of newer versions."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NoReturn

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Index, inspect, text
from sqlalchemy.orm import Session

from epochal.errors import CatalogVersion, OptionError
from epochal.service.catalog.backups import kinds_of, load_backup
from epochal.service.catalog.checks import catalog_findings
from epochal.service.catalog.database import Database
from epochal.service.catalog.engines import make_engine
from epochal.service.catalog.migration import (
    _configuration,
    _revisions,
    check_current,
    is_current,
    migrate,
    migrate_database,
    newest_revision,
    oldest_reader,
    wait_until_current,
)
from epochal.service.catalog.models import Base, Operation, Project
from epochal.service.catalog.standalone import standalone_catalog
from epochal.snapshots.backup_format import Backups, TablePart
from epochal.snapshots.backup_format import Index as BackupIndex
from tests.kit.next_migration import REVISION

AT = "2026-01-02 03:04:05"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def database(url: str) -> Database:
    return Database(url)


def test_migrations_have_one_head() -> None:
    assert len(ScriptDirectory.from_config(_configuration(None)).get_heads()) == 1


def test_file_names_begin_with_the_revision() -> None:
    """A start without pending migrations does not import Alembic."""
    scripts = [*ScriptDirectory.from_config(_configuration(None)).walk_revisions()][::-1]
    assert [Path(script.path).name.partition("_")[0] for script in scripts] == list(_revisions())


def test_next_start_creates_missing_indexes(
    database: Database, next_revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate_database(database)
    with database.writing() as session:
        session.execute(text("DROP INDEX ix_operations_note"))
    table = Base.metadata.tables["operations"]
    monkeypatch.setattr(table, "indexes", {*table.indexes, Index("ix_operations_note")})
    assert migrate_database(database) == next_revision
    found = inspect(database.engine).get_indexes("operations")
    assert "ix_operations_note" in {index["name"] for index in found}


def test_start_without_pending_migrations_changes_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate_database(database)

    def refuse() -> NoReturn:
        raise AssertionError("no migration is pending")

    monkeypatch.setattr(database, "migrating", refuse)
    monkeypatch.setattr(database, "writing", refuse)
    monkeypatch.setattr(database, "without_transaction", refuse)
    assert migrate_database(database) == newest_revision()


def test_migrations_create_the_schema_of_the_models(database: Database) -> None:
    migrate_database(database)

    with database.reading() as session:
        context = MigrationContext.configure(session.connection(), opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_migrated_and_created_schemas_have_the_same_constraints(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Autogenerate compares neither check constraints nor partial indexes."""
    other = f"sqlite:///{tmp_path / 'created.sqlite'}"
    if not url.startswith("sqlite"):
        other = request.getfixturevalue("postgresql_server").create_database()
    migrated, created = Database(url), Database(other)
    migrate_database(migrated)
    Base.metadata.create_all(created.engine)
    found, expected = inspect(migrated.engine), inspect(created.engine)

    for name in Base.metadata.tables:
        assert names(found.get_check_constraints(name)) == names(expected.get_check_constraints(name))
        assert names(found.get_foreign_keys(name)) == names(expected.get_foreign_keys(name))
        assert names(found.get_unique_constraints(name)) == names(expected.get_unique_constraints(name))
        assert indexes(found.get_indexes(name)) == indexes(expected.get_indexes(name))


def installation(session: Session, oldest_reader: str) -> None:
    session.execute(
        text(
            "INSERT INTO installation (number, id, incarnation, oldest_reader, created_at) "
            "VALUES (1, 'i', 'i', :oldest, :at)"
        ),
        {"oldest": oldest_reader, "at": AT},
    )


def names(constraints: object) -> list[str]:
    return sorted(str(constraint["name"]) for constraint in constraints)  # type: ignore[attr-defined]


def indexes(found: object) -> list[tuple[str, bool, bool]]:
    """Name, uniqueness, and whether the index is partial."""
    return sorted(
        (
            str(index["name"]),
            bool(index["unique"]),
            any(option.endswith("_where") for option in index.get("dialect_options", {})),
        )
        for index in found  # type: ignore[attr-defined]
    )


def test_data_survives_a_migration(url: str, database: Database, next_version: Callable[..., str]) -> None:
    migrate_database(database)
    with database.writing() as session:
        session.execute(
            text(
                "INSERT INTO operations (id, kind, state, arguments, created_at, created_by) "
                "VALUES ('1', 'verify', 'succeeded', '{\"a\": 1}', :at, 'me')"
            ),
            {"at": AT},
        )
    revision = next_version()
    with pytest.raises(CatalogVersion, match="epochal migrate"):
        check_current(database)

    assert migrate_database(database) == revision

    check_current(database)
    with database.reading() as session:
        operation = session.get_one(Operation, "1")
        assert (operation.arguments, operation.created_at.year, operation.project) == ({"a": 1}, 2026, "default")
        assert session.execute(text("SELECT note FROM operations")).all() == [(None,)]
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == revision


def test_backup_of_an_older_revision_is_migrated(
    database: Database, next_version: Callable[..., str], tmp_path: Path
) -> None:
    backups = Backups(str(tmp_path / "backups"))
    rows = [{"name": "a", "created_at": "2026-01-02T03:04:05+00:00", "created_by": "me"}]
    kinds = {name: kind for name, kind in kinds_of(Base.metadata.tables["projects"]).items() if name in rows[0]}
    part = backups.write_part("1", "projects", rows)
    tables = (TablePart(name="projects", columns=kinds, part=part),)
    index = BackupIndex.model_construct(revision=newest_revision(), tables=tables)
    revision = next_version()

    with database.migrating() as session:
        load_backup(session, backups, index)

    with database.reading() as session:
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == revision
        assert session.get_one(Project, "a").created_by == "me"


def test_second_migration_run_keeps_the_data(url: str, database: Database) -> None:
    catalog = standalone_catalog(url, "flights", "a" * 64)
    catalog.begin_attempt()

    assert migrate(url) == newest_revision()
    assert standalone_catalog(url, "flights", "a" * 64).begin_attempt().attempt == 2


def test_empty_catalog_is_not_current(database: Database) -> None:
    with pytest.raises(CatalogVersion, match="epochal migrate"):
        check_current(database)


def test_process_waits_until_the_catalog_is_migrated(database: Database) -> None:
    stopped = threading.Event()
    with pytest.raises(CatalogVersion, match="epochal migrate"):
        wait_until_current(database, 0.1, stopped)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_until_current, database, 60.0, stopped)
        assert wait([waiting], timeout=0.7).not_done
        migrate_database(database)
        waiting.result(30.0)
    check_current(database)


def test_waiting_for_a_migration_can_be_stopped(database: Database) -> None:
    stopped = threading.Event()
    stopped.set()
    wait_until_current(database, 60.0, stopped)
    with pytest.raises(CatalogVersion):
        check_current(database)


def test_newer_catalog_is_refused_and_not_changed(database: Database) -> None:
    migrate_database(database)
    with database.writing() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(CatalogVersion) as refusal:
        migrate_database(database)

    assert "9999" in refusal.value.message and newest_revision() in refusal.value.message
    with database.reading() as session:
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == "9999"


@pytest.mark.parametrize(("oldest", "usable"), [(newest_revision(), True), ("9998", False)])
def test_newer_catalog_is_used_if_its_oldest_reader_allows_it(database: Database, oldest: str, usable: bool) -> None:
    """The state during a rolling upgrade, after the first new control plane has migrated."""
    migrate_database(database)
    with database.writing() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        installation(session, oldest)
    if usable:
        assert migrate_database(database) == "9999"
        check_current(database)
        assert is_current(database)
        assert any("9999 of a later version" in finding.said for finding in catalog_findings(database))
    else:
        with pytest.raises(CatalogVersion, match="can be used by versions from revision 9998 on"):
            migrate_database(database)
    with database.reading() as session:
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == "9999"
        assert session.scalar(text("SELECT oldest_reader FROM installation")) == oldest


CONTRACTS = {"drop_table", "drop_column", "drop_constraint", "rename_table", "alter_column", "drop_index"}
CONTRACTING = """

def contract() -> None:
    op.drop_column("operations", "progress")
"""


def contracting_migrations() -> list[str]:
    """Revisions of migrations that contract without naming the oldest version that can work on their tables."""
    found = []
    for script in ScriptDirectory.from_config(_configuration(None)).walk_revisions():
        calls = {
            node.func.attr
            for node in ast.walk(ast.parse(Path(script.path).read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        if calls & CONTRACTS and getattr(script.module, "oldest_reader", None) is None:
            found.append(script.revision)
    return found


def test_migrations_expand_or_name_their_oldest_reader() -> None:
    assert contracting_migrations() == []
    assert oldest_reader() in _revisions()


def test_contracting_migration_is_found(next_version: Callable[..., str]) -> None:
    revision = next_version(CONTRACTING)
    assert contracting_migrations() == [revision]


def test_oldest_reader_is_stored_with_each_migration(database: Database, next_version: Callable[..., str]) -> None:
    migrate_database(database)
    with database.writing() as session:
        installation(session, oldest_reader())
    assert oldest_reader() < REVISION
    revision = next_version(f'oldest_reader = "{REVISION}"\n')
    migrate_database(database)
    with database.reading() as session:
        assert session.scalar(text("SELECT oldest_reader FROM installation")) == revision == oldest_reader()


def test_control_planes_that_start_together_migrate_once(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(migrate, [url] * 4)) == [newest_revision()] * 4


def test_connections_that_open_a_new_file_together_wait_for_each_other(tmp_path: Path) -> None:
    """Without repeats, SQLite refuses one of 300 such connections, so that 200 files show it almost always."""

    def connect(file: Path) -> None:
        engine = make_engine(f"sqlite:///{file}", connections=1)
        engine.connect().close()
        engine.dispose()

    with ThreadPoolExecutor(8) as pool:
        for number in range(200):
            list(pool.map(connect, [tmp_path / f"{number}.sqlite"] * 8))


@pytest.mark.parametrize("invalid_url", ["mysql://localhost/x", "not a url", "://"])
def test_invalid_catalog_url_is_refused(invalid_url: str) -> None:
    with pytest.raises(OptionError):
        migrate(invalid_url)
