"""The DBMS sink satisfies the sink contract on every available database, and its own guarantees."""

from __future__ import annotations

import json
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
from epochal.errors import SchemaError, SinkError
from epochal.testing.contract import (
    DegradedSinkHarness,
    Losses,
    ProxyAnswers,
    SinkBackendContract,
    SinkHarness,
    StepAnswers,
)
from epochal.testing.servers.proxy import TcpProxy
from epochal.testing.sink_contract import APPLICATION, BRANCH, SCHEMA, epoch
from tests.kit.databases import TABLE, DbmsDatabase, DbmsThroughProxy, OrderedChanges

Row = Mapping[str, Any]
NewDatabase = Callable[..., DbmsDatabase]


@pytest.mark.claim("Thesis, table 4.1, DBMS (non-MVCC)")
class TestDbmsSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, url: str, new_database: NewDatabase) -> SinkHarness:
        return new_database(url)


class TestDbmsSinkDegraded(SinkBackendContract):
    """The answer after each step is lost once; each call is repeated from another process."""

    @pytest.fixture
    def harness(self, tmp_path: Path, new_database: NewDatabase) -> SinkHarness:
        return DegradedSinkHarness(new_database(f"sqlite:///{tmp_path / 'out.sqlite'}"), Losses(StepAnswers()))


@pytest.mark.server
@pytest.mark.long
@pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)
class TestDbmsSinkOnServersDegraded(SinkBackendContract):
    """The same on servers. TestDbmsSinkWithLostAnswers loses the answers of PostgreSQL."""

    @pytest.fixture
    def harness(self, url: str, new_database: NewDatabase) -> SinkHarness:
        return DegradedSinkHarness(new_database(url), Losses(StepAnswers()))


@pytest.fixture(scope="module")
def losses(postgresql_proxy: TcpProxy) -> Losses:
    return Losses(ProxyAnswers(postgresql_proxy))


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.long  # TestDbmsSinkDegraded and test_postgresql_two_phase.py lose most of these answers
class TestDbmsSinkWithLostAnswers(SinkBackendContract):
    """Each answer of PostgreSQL is lost once."""

    @pytest.fixture
    def harness(
        self,
        postgresql_url: str,
        postgresql_proxy: TcpProxy,
        losses: Losses,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[SinkHarness]:
        database = DbmsThroughProxy(postgresql_url, tmp_path, monkeypatch)
        database.proxy = postgresql_proxy
        yield DegradedSinkHarness(database, losses)
        database.close()


class TestDbmsSinkWithKeys:
    """Upserts, which the shipped contract suite does not cover."""

    def test_last_row_of_a_key_wins_within_and_across_subtasks(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id",))
        backend = started(database)
        second = written(backend, epoch(1), [(2, "late"), (3, "only")], subtask=1)
        first = written(backend, epoch(1), [(1, "a"), (2, "early"), (1, "b")], subtask=0)
        assert first.rows == 2
        backend.commit(epoch(1), [second, first])
        assert content(database) == {1: "b", 2: "late", 3: "only"}
        backend.commit(epoch(2), [written(backend, epoch(2), [(3, None), (4, 'é漢 \\ "quoted",\n')])])
        assert content(database) == {1: "b", 2: "late", 3: None, 4: 'é漢 \\ "quoted",\n'}

    def test_chunks_are_applied_in_order(
        self, url: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transaction, "CHUNK_ROWS", 10)
        monkeypatch.setattr("epochal.backends.dbms.shard.CHUNK_ROWS", 15)
        database = new_database(url, keys=("id",))
        backend = started(database)
        given = [(number % 7, f"{number}") for number in range(100)]
        backend.commit(epoch(1), [written(backend, epoch(1), [row]) for row in given[:1]])
        handle = written(backend, epoch(2), given, size=4)
        backend.commit(epoch(2), [handle])
        assert content(database) == {key: str(max(n for n in range(100) if n % 7 == key)) for key in range(7)}

    def test_order_column_determines_the_newest_row_across_subtasks(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id",), order_by="at", columns=(("at", None),), keep_newer=False)
        schema = SCHEMA.append(pa.field("at", pa.int64()))
        backend = started(database, schema)
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
    def test_older_rows_of_later_epochs_do_not_replace_newer_ones(
        self, url: str, new_database: NewDatabase, kind: pa.DataType, delivery: Delivery
    ) -> None:
        if pa.types.is_decimal(kind) and url.startswith("sqlite"):
            with pytest.raises(SchemaError, match="'at' cannot protect newer rows: SQLite does not compare decimals"):
                started(new_database(url, **OrderedChanges.writing), OrderedChanges(kind, Random(0)).schema)
            return
        database = new_database(url, **OrderedChanges.writing)
        database.delivery = delivery
        changes = OrderedChanges(kind, Random(29))
        backend = started(database, changes.schema)
        for number in range(1, 40):
            transaction = backend.start(TaskScope(epoch(number), "out", 0))
            transaction.write(changes.batch())
            backend.commit(epoch(number), [transaction.pre_commit()])
            found = {row["id"]: row["name"] for row in database.visible()}
            assert found == {id: name for id, (_, name) in changes.newest.items()}, number

    def test_last_epoch_wins_without_keep_newer(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id",), order_by="at", keep_newer=False)
        schema = SCHEMA.append(pa.field("at", pa.int64()))
        backend = started(database, schema)
        for number, at in enumerate((9, 1), 1):
            row = {"id": 1, "name": f"{at}", "at": at}
            backend.commit(epoch(number), [write(backend, epoch(number), [row], schema)])
        assert content(database) == {1: "1"}

    def test_upserts_inserts_and_deletes_are_applied_in_order(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id",), operation="does")
        backend = started(database, CHANGES)
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

    def test_insert_of_an_existing_key_is_refused_and_named(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id",), operation="does")
        backend = started(database, CHANGES)
        backend.commit(epoch(1), [changed(backend, epoch(1), [("insert", 7, "here")])])
        handle = changed(backend, epoch(2), [("insert", 6, "new"), ("insert", 7, "twice")])
        with pytest.raises(SinkError, match=r"(?s)refuses.*\b7\b"):
            backend.commit(epoch(2), [handle])
        assert content(database) == {7: "here"}
        database.run(f"DELETE FROM {TABLE} WHERE id = 7")
        backend.commit(epoch(2), [handle])
        assert content(database) == {6: "new", 7: "twice"}

    def test_duplicate_insert_within_an_epoch_is_refused_by_the_task(self, url: str, new_database: NewDatabase) -> None:
        backend = started(new_database(url, keys=("id",), operation="does"), CHANGES)
        with pytest.raises(SinkError, match="id=7 is inserted, but"):
            changed(backend, epoch(1), [("insert", 7, "a"), ("upsert", 8, "b"), ("insert", 7, "c")])

    def test_keys_can_be_all_columns(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url, keys=("id", "name"))
        backend = started(database)
        for number in (1, 2):
            backend.commit(epoch(number), [written(backend, epoch(number), [(1, "a"), (1, "b"), (1, "a")])])
        assert sorted(row["name"] for row in database.visible()) == ["a", "b"]


class TestDbmsTypes:
    def test_every_type_is_stored_unchanged(self, url: str, new_database: NewDatabase) -> None:
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
        backend = started(database, schema)
        backend.commit(epoch(1), [write(backend, epoch(1), [row, empty], schema)])
        with database.engine.connect() as connection:
            table = sa.Table(TABLE, sa.MetaData(), autoload_with=connection)
            found = {each.id: dict(each._mapping) for each in connection.execute(table.select())}
        there = found[2**40]
        there["instant"] = there["instant"].replace(tzinfo=UTC) if not there["instant"].tzinfo else there["instant"]
        there |= {"flag": bool(there["flag"]), "money": Decimal(str(there["money"])), "double": float(there["double"])}
        assert there == row
        assert found[1] == empty

    def test_nested_values_are_stored_as_json(self, url: str, new_database: NewDatabase) -> None:
        database = new_database(url)
        schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
        backend = started(database, schema)
        backend.commit(epoch(1), [write(backend, epoch(1), [{"id": 1, "tags": ["a", 'b"']}], schema)])
        (row,) = database.visible()
        tags = row["tags"]
        assert (tags if isinstance(tags, list) else json.loads(tags)) == ["a", 'b"']


CHANGES = pa.schema([pa.field("does", pa.string()), *SCHEMA])


def started(database: DbmsDatabase, schema: pa.Schema = SCHEMA) -> DbmsBackend:
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
    handle = transaction.pre_commit()
    return Handle.decode(handle.encode()).model_copy(update={"carried": handle.carried})


def written(backend: DbmsBackend, scope: EpochScope, given: Sequence[tuple[int, str | None]], **how: Any) -> Handle:
    return write(backend, scope, [{"id": id, "name": name} for id, name in given], SCHEMA, **how)


def changed(
    backend: DbmsBackend, scope: EpochScope, given: Sequence[tuple[str, int, str | None]], subtask: int = 0
) -> Handle:
    changes = [{"does": does, "id": id, "name": name} for does, id, name in given]
    return write(backend, scope, changes, CHANGES, subtask)


def content(database: DbmsDatabase) -> dict[int, str | None]:
    return {row["id"]: row["name"] for row in database.visible()}
