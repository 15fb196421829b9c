"""The DBMS sink keeps the contract of sinks, on every database that can be had; and what only it promises."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from epochal.backends.dbms import DbmsBackend, transaction
from epochal.contracts.configuration import Delivery
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import Fenced, SchemaError, SinkError
from epochal.testing.contract import (
    DegradedSinkHarness,
    Losses,
    ProxyAnswers,
    SinkBackendContract,
    SinkHarness,
    StepAnswers,
)
from epochal.testing.servers.postgresql import PostgresqlServer
from epochal.testing.servers.proxy import TcpProxy, proxy
from epochal.testing.sink_contract import APPLICATION, BRANCH, SCHEMA, epoch, pre_commit, rows, same
from tests.kit.databases import TABLE, DbmsDatabase, DbmsThroughProxy, OrderedChanges, manifest

Row = Mapping[str, Any]
NewDatabase = Callable[..., DbmsDatabase]


@pytest.fixture
def new_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewDatabase]:
    made: list[DbmsDatabase] = []

    def make(url: str, **writing: Any) -> DbmsDatabase:
        made.append(DbmsDatabase(url, tmp_path, monkeypatch, **writing))
        return made[-1]

    yield make
    for database in made:
        database.close()


@pytest.mark.claim("Thesis, table 4.1, DBMS (non-MVCC)")
class TestDbmsSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, url: str, new_database: NewDatabase) -> SinkHarness:
        return new_database(url)


class TestDbmsSinkDegraded(SinkBackendContract):
    """What follows each step is lost once; calls come twice, each from another process."""

    @pytest.fixture
    def harness(self, tmp_path: Path, new_database: NewDatabase) -> SinkHarness:
        return DegradedSinkHarness(new_database(f"sqlite:///{tmp_path / 'out.sqlite'}"), Losses(StepAnswers()))


@pytest.mark.server
@pytest.mark.long
@pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)
class TestDbmsSinkOnServersDegraded(SinkBackendContract):
    """The same; PostgreSQL's own answers are lost below."""

    @pytest.fixture
    def harness(self, url: str, new_database: NewDatabase) -> SinkHarness:
        return DegradedSinkHarness(new_database(url), Losses(StepAnswers()))


@pytest.fixture(scope="module")
def before(postgresql_server: PostgresqlServer) -> Iterator[TcpProxy]:
    with proxy(postgresql_server.port) as before:
        yield before


@pytest.fixture(scope="module")
def losses(before: TcpProxy) -> Losses:
    return Losses(ProxyAnswers(before))


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.long  # what follows each step is lost above; answers of PostgreSQL's in test_postgresql_two_phase.py
class TestDbmsSinkWithLostAnswers(SinkBackendContract):
    """Each answer of PostgreSQL's is lost once."""

    @pytest.fixture
    def harness(
        self, postgresql_url: str, before: TcpProxy, losses: Losses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[SinkHarness]:
        database = DbmsThroughProxy(postgresql_url, tmp_path, monkeypatch)
        database.before = before
        yield DegradedSinkHarness(database, losses)
        database.close()


class TestDbmsSinkWithKeys:
    """Upserts: the shipped suite's rows are not enough here."""

    def test_the_last_row_of_a_key_counts_within_and_across_subtasks(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id",))
        backend = begun(database)
        second = written(backend, epoch(1), [(2, "late"), (3, "only")], subtask=1)
        first = written(backend, epoch(1), [(1, "a"), (2, "early"), (1, "b")], subtask=0)
        assert first.rows == 2
        backend.commit(epoch(1), [second, first])
        assert content(database) == {1: "b", 2: "late", 3: "only"}
        backend.commit(epoch(2), [written(backend, epoch(2), [(3, None), (4, 'é漢 \\ "quoted",\n')])])
        assert content(database) == {1: "b", 2: "late", 3: None, 4: 'é漢 \\ "quoted",\n'}

    def test_chunks_are_applied_one_after_the_other(
        self, url: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transaction, "CHUNK_ROWS", 10)
        monkeypatch.setattr("epochal.backends.dbms.backend.CHUNK_ROWS", 15)
        database = new_database(url, keys=("id",))
        backend = begun(database)
        given = [(number % 7, f"{number}") for number in range(100)]
        backend.commit(epoch(1), [written(backend, epoch(1), [row]) for row in given[:1]])
        handle = written(backend, epoch(2), given, size=4)
        backend.commit(epoch(2), [handle])
        assert content(database) == {key: str(max(n for n in range(100) if n % 7 == key)) for key in range(7)}

    def test_the_order_column_decides_wherever_a_row_was_written(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id",), order_by="at", columns=(("at", None),), keep_newer=False)
        schema = SCHEMA.append(pa.field("at", pa.int64()))
        backend = begun(database, schema)
        newest_first = [
            [{"id": 1, "name": "newest", "at": 9}, {"id": 1, "name": "old", "at": 1}],
            [{"id": 1, "name": "newer", "at": 5}, {"id": 2, "name": "unordered", "at": None}],
        ]
        handles = [write(backend, epoch(1), given, schema, subtask=n) for n, given in enumerate(newest_first)]
        backend.commit(epoch(1), handles)
        assert content(database) == {1: "newest", 2: "unordered"}

    @pytest.mark.parametrize(
        "kind", [pa.int64(), pa.string(), pa.timestamp("us", "UTC"), pa.decimal128(20, 2)], ids=str
    )
    @pytest.mark.parametrize("delivery", ["exactly_once", "idempotent"])
    def test_older_rows_of_later_epochs_leave_newer_ones(
        self, url: str, new_database: NewDatabase, kind: pa.DataType, delivery: Delivery
    ) -> None:
        if pa.types.is_decimal(kind) and url.startswith("sqlite"):
            with pytest.raises(SchemaError, match="'at' cannot protect newer rows: SQLite does not compare decimals"):
                begun(new_database(url, **OrderedChanges.writing), OrderedChanges(kind, Random(0)).schema)
            return
        database = new_database(url, **OrderedChanges.writing)
        database.delivery = delivery
        changes = OrderedChanges(kind, Random(29))
        backend = begun(database, changes.schema)
        for number in range(1, 40):
            transaction = backend.start(TaskScope(epoch(number), "out", 0))
            transaction.write(changes.batch())
            backend.commit(epoch(number), [transaction.pre_commit()])
            found = {row["id"]: row["name"] for row in database.visible()}
            assert found == {id: name for id, (_, name) in changes.newest.items()}, number

    def test_without_protection_the_last_epoch_counts(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id",), order_by="at", keep_newer=False)
        schema = SCHEMA.append(pa.field("at", pa.int64()))
        backend = begun(database, schema)
        for number, at in enumerate((9, 1), 1):
            row = {"id": 1, "name": f"{at}", "at": at}
            backend.commit(epoch(number), [write(backend, epoch(number), [row], schema)])
        assert content(database) == {1: "1"}

    def test_operations(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id",), operation="does")
        backend = begun(database, CHANGES)
        changes = [
            ("upsert", 1, "one"), ("INSERT", 2, "two"), ("upsert", 3, "three"), ("insert", 4, "gone"),
            ("delete", 4, None), ("upsert", 5, "first"), ("delete", 5, None), ("insert", 5, "again"),
        ]  # fmt: skip
        backend.commit(epoch(1), [changed(backend, epoch(1), changes)])
        assert content(database) == {1: "one", 2: "two", 3: "three", 5: "again"}
        changes = [("delete", 1, None), ("delete", 99, None), ("upsert", 2, "new")]
        handles = [changed(backend, epoch(2), changes), changed(backend, epoch(2), [("upsert", 1, "back")], subtask=1)]
        backend.commit(epoch(2), handles)
        assert content(database) == {1: "back", 2: "new", 3: "three", 5: "again"}

    def test_an_insert_of_what_is_there_is_refused_and_named(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id",), operation="does")
        backend = begun(database, CHANGES)
        backend.commit(epoch(1), [changed(backend, epoch(1), [("insert", 7, "here")])])
        handle = changed(backend, epoch(2), [("insert", 6, "new"), ("insert", 7, "twice")])
        with pytest.raises(SinkError, match=r"(?s)refuses.*\b7\b"):
            backend.commit(epoch(2), [handle])
        assert content(database) == {7: "here"}
        database.run(f"DELETE FROM {TABLE} WHERE id = 7")
        backend.commit(epoch(2), [handle])
        assert content(database) == {6: "new", 7: "twice"}

    def test_within_an_epoch_it_is_known_before_the_decision(self, url: str, new_database: NewDatabase) -> None:
        backend = begun(new_database(url, keys=("id",), operation="does"), CHANGES)
        with pytest.raises(SinkError, match="id=7 is inserted, but"):
            changed(backend, epoch(1), [("insert", 7, "a"), ("upsert", 8, "b"), ("insert", 7, "c")])

    def test_keys_of_several_columns_and_no_others(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id", "name"))
        backend = begun(database)
        for number in (1, 2):
            backend.commit(epoch(number), [written(backend, epoch(number), [(1, "a"), (1, "b"), (1, "a")])])
        assert sorted(row["name"] for row in database.visible()) == ["a", "b"]


class TestDbmsTypes:
    def test_every_type_comes_back_as_it_was(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id",))
        fields = {
            "id": pa.int64(), "flag": pa.bool_(), "small": pa.int16(), "whole": pa.int32(), "double": pa.float64(),
            "money": pa.decimal128(12, 2), "text": pa.string(), "bytes": pa.binary(), "day": pa.date32(),
            "local": pa.timestamp("us"), "instant": pa.timestamp("us", "UTC"),
        }  # fmt: skip
        schema = pa.schema(list(fields.items()))
        row = {
            "id": 2**40, "flag": True, "small": -5, "whole": 2**31 - 1, "double": 0.1, "money": Decimal("-12.30"),
            "text": "", "bytes": b"\x00\xff\\x", "day": date(2024, 2, 29),
            "local": datetime(2024, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001
            "instant": datetime(2024, 1, 2, 3, 4, 5, 678901, UTC),
        }  # fmt: skip
        empty = {**dict.fromkeys(fields), "id": 1}
        backend = begun(database, schema)
        backend.commit(epoch(1), [write(backend, epoch(1), [row, empty], schema)])
        with database.engine.connect() as connection:
            table = sa.Table(TABLE, sa.MetaData(), autoload_with=connection)
            found = {each.id: dict(each._mapping) for each in connection.execute(table.select())}
        there = found[2**40]
        there["instant"] = there["instant"].replace(tzinfo=UTC) if not there["instant"].tzinfo else there["instant"]
        there |= {"flag": bool(there["flag"]), "money": Decimal(str(there["money"])), "double": float(there["double"])}
        assert there == row
        assert found[1] == empty

    def test_nested_values_go_into_json(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
        backend = begun(database, schema)
        backend.commit(epoch(1), [write(backend, epoch(1), [{"id": 1, "tags": ["a", 'b"']}], schema)])
        (row,) = database.visible()
        tags = row["tags"]
        assert (tags if isinstance(tags, list) else json.loads(tags)) == ["a", 'b"']


class TestTheFence:
    def test_each_attempt_of_a_zombie_is_refused(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        zombie, handle = begun(database), None
        handle = pre_commit(zombie, epoch(1), rows(1))
        successor = database.make()
        successor.recover(at(0, attempt=2))
        with pytest.raises(Fenced, match="attempt 2 has taken over"):
            zombie.commit(epoch(1), [handle])
        with pytest.raises(Fenced):
            zombie.recover(at(0, attempt=1))
        assert database.visible() == []

    def test_a_fence_ahead_of_the_application_is_lost_state(self, url: str, new_database: NewDatabase) -> None:
        backend = begun(new_database(url))
        for number in (1, 2):
            backend.commit(epoch(number), [pre_commit(backend, epoch(number), rows(number))])
        with pytest.raises(SinkError, match="already holds epoch 2, but the application's state is at epoch 1"):
            backend.recover(at(1, attempt=2))

    def test_a_fence_that_was_put_back_is_seen(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        backend = begun(database)
        backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1))])
        database.run("UPDATE _epochal_fence SET epoch = 0")
        with pytest.raises(SinkError, match="is at epoch 0, attempt 1; epoch 2 of attempt 1 follows epoch 1"):
            backend.commit(epoch(2), [pre_commit(backend, epoch(2), rows(2))])
        assert same(database.visible(), rows(1))

    def test_a_deleted_fence_is_seen_and_a_new_sink_is_not_taken_for_one(
        self, url: str, new_database: NewDatabase
    ) -> None:
        database = new_database(url)
        database.store.write_manifest(manifest(4))
        newcomer = database.make()
        newcomer.check(SCHEMA)
        newcomer.recover(at(4, attempt=3))
        handle = pre_commit(newcomer, epoch(5, attempt=3), rows(5))
        newcomer.commit(epoch(5, attempt=3), [handle])
        assert same(database.visible(), rows(5))

        database.store.write_manifest(manifest(5, newcomer.target))
        database.run("DELETE FROM _epochal_fence")
        with pytest.raises(SinkError, match="has lost the row of branch main"):
            newcomer.commit(epoch(6, attempt=3), [])
        with pytest.raises(SinkError, match="has lost the row of branch main"):
            newcomer.recover(at(5, attempt=4))

    def test_a_sink_that_was_left_out_for_a_while_goes_on(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        backend = begun(database)
        backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1))])
        database.store.write_manifest(manifest(8))
        backend.recover(at(8, attempt=2))
        backend.commit(epoch(9, attempt=2), [pre_commit(backend, epoch(9, attempt=2), rows(9))])
        assert same(database.visible(), rows(1, 9))

    def test_a_new_branch_has_a_fence_of_its_own(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        backend = begun(database)
        backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1))])
        fork = EpochScope(APPLICATION, EpochKey("fork", 2), 1, EpochKey(BRANCH, 1))
        backend.recover(EpochScope(APPLICATION, EpochKey("fork", 0), 1, None))
        backend.commit(fork, [pre_commit(backend, fork, rows(2))])
        assert {(row["branch"], row["epoch"]) for row in database.rows("SELECT * FROM _epochal_fence")} == {
            (BRANCH, 1),
            ("fork", 2),
        }


class TestASecondRunWithEmptyState:
    def test_it_appends_nothing_twice(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        first, second = (f"{APPLICATION}-0000000{number}" for number in (1, 2))
        self.run(database, first)
        with pytest.raises(SinkError, match=f"append to table {TABLE} a second time: an earlier run .*{first}.*") as no:
            self.run(database, second)
        assert "--directory DIR" in no.value.message
        assert same(database.visible(), rows(1, 2))
        forget = re.search(r"DELETE FROM _epochal_fence WHERE .*?\)", no.value.message)
        assert forget is not None
        database.run(forget[0])
        self.run(database, second)
        assert same(database.visible(), rows(1, 2, 1, 2))

    def test_an_empty_table_is_filled_again(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        self.run(database, f"{APPLICATION}-00000001")
        database.run(f"DELETE FROM {TABLE}")
        self.run(database, f"{APPLICATION}-00000002")
        assert same(database.visible(), rows(1, 2))

    @pytest.mark.parametrize("writing", [{}, {"keys": ("id",)}], ids=["continued", "with keys"])
    def test_other_runs_go_on(self, url: str, new_database: NewDatabase, writing: Any) -> None:
        """A branch that continues another one, and a sink that replaces rows."""
        database = new_database(url, **writing)
        parent = EpochKey(f"{APPLICATION}-00000001", 1)
        self.run(database, parent.branch)
        self.run(database, f"{APPLICATION}-00000002", None if writing else parent)
        self.run(database, "another-00000003", application="another")
        assert same(database.visible(), rows(1, 2) if writing else rows(1, 2, 1, 2, 1, 2))

    def test_another_application_s_rows_in_the_table_are_named(
        self, url: str, new_database: NewDatabase, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The application begins again under another name, or another application has the same table."""
        database = new_database(url)
        self.run(database, "another-00000003", application="another")
        assert caplog.messages == []
        self.run(database, f"{APPLICATION}-00000001")
        (warning,) = [text for text in caplog.messages if "appends to table" in text]
        assert f"Sink 'out' of '{APPLICATION}'" in warning and f"table {TABLE}," in warning
        assert "(branch another-00000003, sink 'out', to epoch 1)" in warning and "_epochal_fence" in warning
        caplog.clear()
        database.run(f"DELETE FROM {TABLE}")
        self.run(database, "third-00000004", application="third")
        assert caplog.messages == []

    def run(
        self, database: DbmsDatabase, branch: str, parent: EpochKey | None = None, application: str = APPLICATION
    ) -> None:
        backend = database.make()
        backend.check(SCHEMA)
        backend.recover(EpochScope(application, EpochKey(branch, 0), 1, parent))
        scope = EpochScope(application, EpochKey(branch, 1), 1, parent)
        backend.commit(scope, [pre_commit(backend, scope, rows(1, 2))])


@pytest.mark.server
def test_a_transaction_that_a_stopped_driver_left_open_is_ended(postgresql_url: str, new_database: NewDatabase) -> None:
    """It holds the fence's row: its successor would wait for ever."""
    database = new_database(postgresql_url)
    begun(database)
    with database.engine.connect() as stopped:
        stopped.exec_driver_sql("UPDATE _epochal_fence SET epoch = 1")
        successor = database.make()
        successor.recover(at(0, attempt=2))
        with pytest.raises(sa.exc.OperationalError, match="terminating connection"):
            stopped.exec_driver_sql("SELECT 1")
    assert database.rows("SELECT epoch, attempt FROM _epochal_fence") == [{"epoch": 0, "attempt": 2}]


CHANGES = pa.schema([pa.field("does", pa.string()), *SCHEMA])


def begun(database: DbmsDatabase, schema: pa.Schema = SCHEMA) -> DbmsBackend:
    backend = database.make()
    backend.check(schema)
    backend.recover(at(0))
    return backend


def at(latest: int, attempt: int = 1) -> EpochScope:
    return EpochScope(APPLICATION, EpochKey(BRANCH, latest), attempt, None)


def write(
    backend: DbmsBackend, scope: EpochScope, given: Sequence[Row], schema: pa.Schema, subtask: int = 0, size: int = 1000
) -> Handle:
    transaction = backend.start(TaskScope(scope, "out", subtask))
    for first in range(0, len(given), size):
        transaction.write(pa.RecordBatch.from_pylist(list(given[first : first + size]), schema=schema))
    return Handle.decode(transaction.pre_commit().encode())


def written(backend: DbmsBackend, scope: EpochScope, given: Sequence[tuple[int, str | None]], **how: Any) -> Handle:
    return write(backend, scope, [{"id": id, "name": name} for id, name in given], SCHEMA, **how)


def changed(
    backend: DbmsBackend, scope: EpochScope, given: Sequence[tuple[str, int, str | None]], subtask: int = 0
) -> Handle:
    changes = [{"does": does, "id": id, "name": name} for does, id, name in given]
    return write(backend, scope, changes, CHANGES, subtask)


def content(database: DbmsDatabase) -> dict[int, str | None]:
    return {row["id"]: row["name"] for row in database.visible()}
