"""Problems of a database or table are reported at the start where possible, and name the sink and the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal.backends.dbms import DatabaseAddress, DbmsBackend, Writing
from epochal.backends.postgresql_two_phase import PostgresqlTwoPhaseBackend
from epochal.connectors import dbms
from epochal.contracts.backend import SinkPlace
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.source import SliceLimits
from epochal.errors import SchemaError, SinkError, SourceUnavailable
from epochal.secrets import secret
from epochal.testing.servers.postgresql import postgresql
from epochal.testing.servers.process import LOOPBACK, free_port
from epochal.testing.sink_contract import APPLICATION, BRANCH, SCHEMA, epoch, pre_commit, rows, same
from tests.kit.databases import TABLE, DbmsDatabase

AT_START = EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None)
NewDatabase = Callable[..., DbmsDatabase]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'out.sqlite'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def new_database(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewDatabase]:
    databases: list[DbmsDatabase] = []

    def make(*statements: str, **writing: Any) -> DbmsDatabase:
        databases.append(DbmsDatabase(url, tmp_path, monkeypatch, **{"create": False, **writing}))
        databases[-1].run(*statements)
        return databases[-1]

    yield make
    for database in databases:
        database.close()


@pytest.mark.parametrize(
    ("table", "writing", "message"),
    [
        (None, {}, f"There is no table {TABLE}. Create it, correct the name, or let the sink create it: create=True"),
        ("(id bigint)", {}, "has no column 'name'. It has id"),
        ("(id bigint, nam text)", {}, "has no column 'name'. Did you mean 'nam'"),
        ("(id text, name text)", {}, "column 'id' is text, which does not accept every bigint"),
        ("(id bigint, name date)", {}, "column 'name' is date, which does not accept every string"),
        ("(id bigint, name text, more int not null)", {}, "column 'more' accepts no null and has no default"),
        ("(id bigint, name text)", {"keys": ("id",)}, r"ADD UNIQUE \(id\)"),
        ("(id bigint, name text, unique (id, name))", {"keys": ("id",)}, "over exactly id"),
        ("(id bigint primary key, name text)", {"keys": ("no",)}, "keys names column 'no'"),
        ("(id bigint, name text, x text generated always as (name) stored)", {"columns": (("name", "x"),)}, "computes"),
    ],
)
def test_unsuitable_tables_are_rejected_at_the_start(
    new_database: NewDatabase, table: str | None, writing: dict[str, Any], message: str
) -> None:
    database = new_database(*([f"CREATE TABLE {TABLE} {table}"] if table else []), **writing)
    with pytest.raises(SchemaError, match=f"Sink 'out' at .*{message}"):
        database.make().check(SCHEMA)
    with pytest.raises(SchemaError, match="Sink 'out'"):
        unchecked(database).recover(AT_START)


def unchecked(database: DbmsDatabase) -> DbmsBackend:
    """A backend whose check has passed, as when the table changes between submission and start."""
    backend = database.make()
    backend._access._schema = SCHEMA
    return backend


@pytest.mark.parametrize(
    "table",
    [
        "(id bigint, name varchar(40), more int default 7)",
        "(more int, name text, id numeric(20) not null)",
        "(id bigint primary key, name text not null)",
    ],
)
def test_suitable_tables_are_accepted(new_database: NewDatabase, table: str) -> None:
    database = new_database(f"CREATE TABLE {TABLE} {table}")
    backend = database.make()
    backend.check(SCHEMA)
    backend.recover(AT_START)
    backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1, 2))])
    assert [(row["id"], row["name"]) for row in database.visible()] == [(row["id"], row["name"]) for row in rows(1, 2)]


def test_column_types_without_counterpart_are_rejected(new_database: NewDatabase) -> None:
    database = new_database(create=True)
    with pytest.raises(SchemaError, match=r"column 'took': type interval day to second has no counterpart"):
        database.make().check(SCHEMA.append(pa.field("took", pa.duration("us"))))


def test_check_does_not_write(new_database: NewDatabase) -> None:
    database = new_database(create=True)
    database.make().check(SCHEMA)
    assert database.visible() == []
    with pytest.raises(Exception, match="_epochal_fence"):
        database.rows("SELECT * FROM _epochal_fence")


@pytest.mark.claim(
    "docs/concepts/guarantees.md: what column types, lengths and a topic's limit determine is found before the decision"
)
def test_rows_that_do_not_fit_are_rejected_before_the_decision(new_database: NewDatabase) -> None:
    database = new_database(f"CREATE TABLE {TABLE} (id bigint primary key, name varchar(8) not null)", keys=("id",))
    backend = started(database)
    with pytest.raises(SinkError, match=r"Row id=5 does not fit the table: 'name' takes no null"):
        pre_commit(backend, epoch(1), rows(1, 5))
    with pytest.raises(SinkError, match=r"Row id=1001 does not fit the table: 'name' is varchar\(8\)"):
        pre_commit(backend, epoch(1), rows(1001))


@pytest.mark.parametrize("keys", [(), ("id",)])
@pytest.mark.claim(
    "docs/concepts/guarantees.md: is found after the decision: the sink waits until it is corrected, and nothing is "
    "lost"
)
def test_violated_constraint_stops_the_sink_until_it_is_corrected(
    new_database: NewDatabase, keys: tuple[str, ...]
) -> None:
    table = f"CREATE TABLE {TABLE} (id bigint primary key, name text unique, CHECK (id < 100))"
    database = new_database(table, f"INSERT INTO {TABLE} VALUES (77, 'row 3 é漢')", keys=keys)
    backend = started(database)
    checked, duplicate = pre_commit(backend, epoch(1), rows(1, 144)), pre_commit(backend, epoch(2), rows(2, 3))
    with pytest.raises(SinkError, match=r"(?s)refuses.*\b144\b"):
        backend.commit(epoch(1), [checked])
    assert len(database.visible()) == 1
    database.run(f"DROP TABLE {TABLE}", f"CREATE TABLE {TABLE} (id bigint primary key, name text unique)")
    database.run(f"INSERT INTO {TABLE} VALUES (77, 'row 3 é漢')")
    backend.commit(epoch(1), [checked])
    with pytest.raises(SinkError, match=r"(?s)refuses.*row 3"):
        backend.commit(epoch(2), [duplicate])
    database.run(f"DELETE FROM {TABLE} WHERE id = 77")
    backend.commit(epoch(2), [duplicate])
    assert same(database.visible(), rows(1, 144, 2, 3))


def started(database: DbmsDatabase) -> DbmsBackend:
    backend = database.make()
    backend.check(SCHEMA)
    backend.recover(AT_START)
    return backend


class TestPostgresql:
    pytestmark = pytest.mark.server

    @pytest.fixture
    def url(self, postgresql_url: str) -> str:
        return postgresql_url

    @pytest.mark.parametrize(
        ("column", "message"),
        [
            ("id integer", "column 'id' is integer, which does not accept every bigint"),
            ("id real", "column 'id' is real"),
            ("id numeric(18,2)", r"column 'id' is numeric\(18, 2\)"),
        ],
    )
    def test_too_small_columns_are_rejected(self, new_database: NewDatabase, column: str, message: str) -> None:
        database = new_database(f"CREATE TABLE {TABLE} ({column}, name text)")
        with pytest.raises(SchemaError, match=message):
            database.make().check(SCHEMA)

    def test_missing_privileges_are_reported(self, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        database = new_database(
            f"CREATE TABLE {TABLE} (id bigint, name text)",
            "DROP ROLE IF EXISTS unprivileged",
            "CREATE ROLE unprivileged LOGIN PASSWORD 'secret-word'",
        )
        monkeypatch.setenv("TEST_OTHER_PASSWORD", "secret-word")
        backend = backend_as(database, "unprivileged", "env:TEST_OTHER_PASSWORD")
        backend.check(SCHEMA)
        with pytest.raises(SinkError, match=r"permission denied for schema public.*Grant the user this privilege"):
            backend.recover(AT_START)
        started(database).close()
        handle = pre_commit(database.make(), epoch(1), rows(1))
        with pytest.raises(SinkError, match=r"permission denied for table _epochal_fence"):
            backend.commit(epoch(1), [handle])
        backend.close()
        monkeypatch.setenv("TEST_OTHER_PASSWORD", "secret-mistake")
        with pytest.raises(SinkError, match=r"authentication failed.*Correct the user or its password") as caught:
            backend_as(database, "unprivileged", "env:TEST_OTHER_PASSWORD").check(SCHEMA)
        assert "secret-" not in caught.value.message
        database.run("DROP ROLE unprivileged")

    def test_missing_database_is_reported(self, new_database: NewDatabase) -> None:
        database = new_database()
        url = database.url.set(database="nowhere")._replace(password=None).render_as_string()
        address = DatabaseAddress.parse("dbms.sink", url, database.password, {})
        with pytest.raises(SinkError, match=r'database "nowhere" does not exist'):
            DbmsBackend(SinkPlace("out"), address, Writing(TABLE)).check(SCHEMA)

    def test_missing_prepared_transactions_are_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with postgresql(max_prepared_transactions=0) as server:
            database = DbmsDatabase(server.create_database(), tmp_path, monkeypatch)
            backend = PostgresqlTwoPhaseBackend(SinkPlace("out"), database.address, Writing(TABLE, create=True))
            with pytest.raises(SinkError, match=r"Sink 'out'.*max_prepared_transactions is 0.*dbms\.sink"):
                backend.check(SCHEMA)
            backend.close()


def backend_as(database: DbmsDatabase, user: str, password: str) -> DbmsBackend:
    url = database.url.set(username=user)._replace(password=None).render_as_string()
    address = DatabaseAddress.parse("dbms.sink", url, secret(password), {})
    return DbmsBackend(SinkPlace("out", database.store), address, database.writing)


@pytest.mark.parametrize("url", [f"postgresql://u@{LOOPBACK}:PORT/d", f"mysql://u@{LOOPBACK}:PORT/d"])
def test_unreachable_database_is_reported(url: str) -> None:
    address = DatabaseAddress.parse("dbms.sink", url.replace("PORT", str(free_port())), None, {})
    backend = DbmsBackend(SinkPlace("out"), address, Writing(TABLE))
    with pytest.raises(SinkError, match=r"Sink 'out' could not look at the table at .*cannot be reached.*Start it"):
        backend.check(SCHEMA)


@pytest.mark.parametrize("url", [f"postgresql://u@{LOOPBACK}:PORT/d", f"mysql://u@{LOOPBACK}:PORT/d"])
def test_unreachable_database_of_a_source_is_waited_for(url: str) -> None:
    source = dbms.source(url.replace("PORT", str(free_port())), "orders", "id").make()
    with pytest.raises(SourceUnavailable, match=r"Table orders at .*cannot be reached.*Start it"):
        source.plan(SliceLimits(None))


def test_sqlite_file_that_cannot_be_created_is_reported() -> None:
    address = DatabaseAddress.parse("dbms.sink", "sqlite:////nowhere/at/all.sqlite", None, {})
    with pytest.raises(SinkError, match=r"sqlite:/nowhere/at/all.sqlite: unable to open database file"):
        DbmsBackend(SinkPlace("out"), address, Writing(TABLE)).check(SCHEMA)
