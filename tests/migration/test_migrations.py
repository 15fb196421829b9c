"""Migrations, on SQLite and PostgreSQL: one head, the models' schema, data survives, newer catalogs are refused."""

from __future__ import annotations

import ast
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from epochal.errors import CatalogVersion, OptionError
from epochal.service.catalog.checks import catalog_findings
from epochal.service.catalog.database import Database
from epochal.service.catalog.figures import CountRepository
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
from epochal.service.catalog.models import Application, Base, Branch, Operation
from epochal.service.catalog.standalone import standalone_catalog

AT = "2026-01-02 03:04:05"
OLD_EPOCHS: dict[str, list[dict[str, Any]]] = {
    "artifacts": [{"sha256": "a", "filename": "a.py", "bytes": 1, "created_at": AT, "created_by": "me"}],
    "applications": [
        {
            "id": "1",
            "name": "flights",
            "branch": "flights-1",
            "shadow": False,
            "created_at": AT,
            "updated_at": AT,
            "created_by": "me",
        }
    ],
    "versions": [
        {
            "application": "1",
            "number": 1,
            "artifact": "a",
            "parameters": "{}",
            "configuration": "{}",
            "created_at": AT,
            "created_by": "me",
        }
    ],
    "branches": [
        {
            "id": "flights-1",
            "application": "1",
            "kind": "start",
            "attempt": 1,
            "owned": True,
            "last_attempt": 1,
            "created_at": AT,
            "created_by": "me",
        }
    ],
    "executions": [
        {
            "id": "e",
            "application": "1",
            "version": 1,
            "branch": "flights-1",
            "state": "running",
            "attempt": 1,
            "started_at": AT,
        }
    ],
    "epochs": [
        {
            "branch": "flights-1",
            "epoch": number,
            "execution": "e",
            "attempt": 1,
            "state": state,
            "manifest_path": "m",
            "manifest_sha256": "a",
            "started_at": AT,
        }
        for number, state in enumerate(["committed", "committed", "aborted", "committed", "prepared", "started"], 1)
    ],
}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def database(url: str) -> Database:
    return Database(url)


def revisions() -> list[str]:
    """Oldest first."""
    script = ScriptDirectory.from_config(_configuration(None))
    return [revision.revision for revision in script.walk_revisions()][::-1]


def insert_old_epochs(database: Database) -> None:
    with database.writing() as session:
        for table, rows in OLD_EPOCHS.items():
            for row in rows:
                columns = ", ".join(row)
                values = ", ".join(f":{column}" for column in row)
                session.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)


def migrate_to(database: Database, revision: str) -> None:
    with database.migrating() as session:
        command.upgrade(_configuration(session.connection()), revision)


def test_there_is_one_head() -> None:
    assert len(ScriptDirectory.from_config(_configuration(None)).get_heads()) == 1


def test_files_are_called_by_their_revisions() -> None:
    """So that a start which finds nothing to do needs no Alembic to see it."""
    scripts = [*ScriptDirectory.from_config(_configuration(None)).walk_revisions()][::-1]
    assert [Path(script.path).name.partition("_")[0] for script in scripts] == list(_revisions())


def test_what_was_left_of_a_migration_is_found_by_the_next_start(database: Database) -> None:
    migrate_database(database)
    with database.writing() as session:
        session.execute(text("DROP INDEX ix_operations_finished_at"))
    migrate_database(database)
    found = inspect(database.engine).get_indexes("operations")
    assert "ix_operations_finished_at" in {index["name"] for index in found}


def test_a_start_that_finds_nothing_to_do_changes_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate_database(database)

    def refuse() -> NoReturn:
        raise AssertionError("there is nothing to be done")

    monkeypatch.setattr(database, "migrating", refuse)
    monkeypatch.setattr(database, "writing", refuse)
    monkeypatch.setattr(database, "without_transaction", refuse)
    assert migrate_database(database) == newest_revision()


def test_migrations_make_exactly_the_models(database: Database) -> None:
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


def names(constraints: object) -> list[str]:
    return sorted(str(constraint["name"]) for constraint in constraints)  # type: ignore[attr-defined]


def indexes(found: object) -> list[tuple[str, bool, bool]]:
    """Name, uniqueness, and whether it is partial."""
    return sorted(
        (
            str(index["name"]),
            bool(index["unique"]),
            any(option.endswith("_where") for option in index.get("dialect_options", {})),
        )
        for index in found  # type: ignore[attr-defined]
    )


def test_data_survives_every_migration_after_the_first(url: str, database: Database) -> None:
    for revision in revisions():
        migrate_to(database, revision)
        if revision == revisions()[0]:
            with database.writing() as session:
                session.execute(
                    text(
                        "INSERT INTO applications (id, name, branch, shadow, created_at, updated_at, created_by) "
                        "VALUES ('1', 'flights', 'flights-1', :no, :at, :at, 'me')"
                    ),
                    {"no": False, "at": "2026-01-02 03:04:05"},
                )

    check_current(database)
    with database.reading() as session:
        application = session.get_one(Application, "1")
        assert (application.name, application.shadow, application.created_at.year) == ("flights", False, 2026)


def test_epochs_that_are_there_are_counted(database: Database) -> None:
    """Made by the first version, so that what refers to the tables that are made anew is there."""
    migrate_to(database, "0001")
    insert_old_epochs(database)

    migrate_database(database)

    with database.reading() as session:
        branch = session.get_one(Branch, "flights-1")
        assert (branch.committed_epochs, branch.aborted_epochs) == (3, 1)
        assert CountRepository(session).epochs() == {"started": 1, "prepared": 1, "committed": 3, "aborted": 1}


def test_what_epochs_that_are_there_left_out_is_added_up(database: Database) -> None:
    """Of committed epochs alone."""
    migrate_to(database, "0001")
    insert_old_epochs(database)
    migrate_to(database, "0008")
    with database.writing() as session:
        left_out = {"late": '{"hourly": 2}', "rejected": '{"at": 1}'}
        session.execute(text("UPDATE epochs SET late_rows = :late, rejected_rows = :rejected"), left_out)

    migrate_database(database)

    with database.reading() as session:
        found = {(kind, place): total for _, kind, place, total in CountRepository(session).left_out()}
    assert found == {("late", "hourly"): 6, ("rejected", "at"): 3}


def test_migrating_twice_keeps_what_is_there(url: str, database: Database) -> None:
    catalog = standalone_catalog(url, "flights", "a" * 64)
    catalog.begin_attempt()

    assert migrate(url) == newest_revision()
    assert standalone_catalog(url, "flights", "a" * 64).begin_attempt().attempt == 2


def test_an_empty_catalog_is_not_current(database: Database) -> None:
    with pytest.raises(CatalogVersion, match="epochal migrate"):
        check_current(database)


def test_who_starts_beside_the_one_that_migrates_waits_for_it(database: Database) -> None:
    over = threading.Event()
    with pytest.raises(CatalogVersion, match="epochal migrate"):
        wait_until_current(database, 0.1, over)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_until_current, database, 60.0, over)
        assert wait([waiting], timeout=0.7).not_done
        migrate_database(database)
        waiting.result(30.0)
    check_current(database)


def test_who_waits_for_a_migration_ends_when_told(database: Database) -> None:
    over = threading.Event()
    over.set()
    wait_until_current(database, 60.0, over)
    with pytest.raises(CatalogVersion):
        check_current(database)


def test_a_newer_catalog_is_refused_and_left_alone(database: Database) -> None:
    migrate_database(database)
    with database.writing() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(CatalogVersion) as refusal:
        migrate_database(database)

    assert "9999" in refusal.value.message and newest_revision() in refusal.value.message
    with database.reading() as session:
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == "9999"


@pytest.mark.parametrize(("oldest", "usable"), [(newest_revision(), True), ("0011", True), ("9998", False)])
def test_a_newer_catalog_is_used_as_it_is_where_it_says_that_it_can_be(
    database: Database, oldest: str, usable: bool
) -> None:
    """As while control planes are replaced one after the other: the first new one has migrated."""
    migrate_database(database)
    with database.writing() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        session.execute(text("DELETE FROM installation"))
        session.execute(
            text(
                "INSERT INTO installation (number, id, incarnation, oldest_reader, created_at) "
                "VALUES (1, 'i', 'i', :oldest, :at)"
            ),
            {"oldest": oldest, "at": AT},
        )
    if usable:
        assert migrate_database(database) == "9999"
        check_current(database)
        assert is_current(database)
        assert any("9999, of a later version" in finding.said for finding in catalog_findings(database))
    else:
        with pytest.raises(CatalogVersion, match="can be used by versions from revision 9998 on"):
            migrate_database(database)
    with database.reading() as session:
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == "9999"
        assert session.scalar(text("SELECT oldest_reader FROM installation")) == oldest


CONTRACTS = {"drop_table", "drop_column", "drop_constraint", "rename_table", "alter_column", "drop_index"}


def test_migrations_expand_or_say_who_can_still_work_on_their_tables() -> None:
    for script in ScriptDirectory.from_config(_configuration(None)).walk_revisions():
        if script.revision <= "0013":
            continue
        calls = {
            node.func.attr
            for node in ast.walk(ast.parse(Path(script.path).read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        if calls & CONTRACTS:
            assert getattr(script.module, "oldest_reader", None) is not None, script.path
    assert oldest_reader() >= "0013"


def test_control_planes_that_start_at_once_migrate_once(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(migrate, [url] * 4)) == [newest_revision()] * 4


@pytest.mark.parametrize("bad", ["mysql://localhost/x", "no url at all", "://"])
def test_a_url_that_cannot_be_a_catalog_is_refused(bad: str) -> None:
    with pytest.raises(OptionError):
        migrate(bad)


def test_operations_that_run_are_claimed_by_nobody_after_the_migration(database: Database) -> None:
    migrate_to(database, "0010")
    rows = {"collect": '{"grace_seconds": 0.0, "process": "p", "beat": "t"}', "rekey": '{"branches": ["b"]}'}
    with database.writing() as session:
        for kind, arguments in rows.items():
            session.execute(
                text(
                    "INSERT INTO operations (id, kind, state, arguments, created_at, created_by) "
                    "VALUES (:kind, :kind, 'running', :arguments, :at, 'me')"
                ),
                {"kind": kind, "arguments": arguments, "at": AT},
            )

    migrate_database(database)

    with database.reading() as session:
        found = {kind: session.get_one(Operation, kind) for kind in rows}
    assert {kind: row.arguments for kind, row in found.items()} == {
        "collect": {"grace_seconds": 0.0},
        "rekey": {"branches": ["b"]},
    }
    assert {(row.state, row.claim_holder, row.cancel_requested_at) for row in found.values()} == {
        ("running", None, None)
    }
