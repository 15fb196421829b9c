"""dbms.sink with delivery at_least_once and idempotent, on every available database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors import dbms
from epochal.contracts.backend import SinkBackend
from epochal.contracts.configuration import Delivery
from epochal.contracts.identity import TaskScope
from epochal.errors import Fenced, OptionError, SinkError
from epochal.testing.direct_sink_contract import DirectSinkContract, DirectSinkHarness, begun
from epochal.testing.sink_contract import OWNER, epoch, pre_commit, rows, same, start
from tests.kit.databases import TABLE, DbmsDatabase

NewDatabase = Callable[..., "DirectDatabase"]


class DirectDatabase(DbmsDatabase, DirectSinkHarness):
    __test__ = False

    def __init__(self, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, delivery: Delivery, **options: Any):
        super().__init__(url, folder, monkeypatch, **options)
        self.delivery = delivery


@pytest.fixture
def new_database(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewDatabase]:
    databases: list[DirectDatabase] = []

    def make(delivery: Delivery, **options: Any) -> DirectDatabase:
        databases.append(DirectDatabase(url, tmp_path, monkeypatch, delivery, **options))
        return databases[-1]

    yield make
    for database in databases:
        database.close()


@pytest.mark.claim(
    "docs/concepts/guarantees.md: Epochs that were decided before are committed as they were prepared",
    "docs/concepts/guarantees.md: After a change from `at_least_once` to `exactly_once` no later row is lost or "
    "doubled.",
)
class TestAtLeastOnce(DirectSinkContract):
    @pytest.fixture
    def harness(self, new_database: NewDatabase) -> DirectSinkHarness:
        return new_database("at_least_once")


class TestIdempotent(DirectSinkContract):
    replaces = True

    @pytest.fixture
    def harness(self, new_database: NewDatabase) -> DirectSinkHarness:
        return new_database("idempotent", keys=("id",))

    @pytest.mark.claim("docs/concepts/guarantees.md: A task of a driver that was replaced is refused before it commits")
    def test_task_of_a_replaced_driver_does_not_overwrite_newer_rows(
        self, harness: DirectSinkHarness, backend: SinkBackend
    ) -> None:
        late = start(backend, epoch(1))
        late.write(pa.RecordBatch.from_pydict({"id": [1], "name": ["old"]}))
        successor = begun(harness.make(), epoch(0, attempt=2))
        pre_commit(successor, epoch(2, attempt=2, parent=0), rows(1))
        with pytest.raises(Fenced, match="attempt 2 has taken over"):
            late.pre_commit()
        assert same(harness.visible(), rows(1))

    @pytest.mark.claim("docs/concepts/guarantees.md: It is refused once that epoch is committed.")
    def test_task_of_an_aborted_epoch_is_refused_after_a_later_commit(
        self, harness: DirectSinkHarness, backend: SinkBackend
    ) -> None:
        late = start(backend, epoch(1))
        late.write(pa.RecordBatch.from_pydict({"id": [1], "name": ["old"]}))
        after = epoch(2, parent=0)
        backend.commit(after, [pre_commit(backend, after, rows(1))])
        with pytest.raises(SinkError, match="a task of epoch 1 is obsolete"):
            late.pre_commit()
        assert same(harness.visible(), rows(1))

    @pytest.mark.claim("docs/concepts/guarantees.md: an `insert` is refused")
    def test_inserts_are_refused_because_they_cannot_be_repeated(self, new_database: NewDatabase) -> None:
        backend = begun(new_database("idempotent", keys=("id",), operation="name", columns=(("name", "name"),)).make())
        transaction = backend.start(TaskScope(epoch(1), OWNER, 0))
        with pytest.raises(SinkError, match=r"id=1.* is inserted, but delivery idempotent may write it twice"):
            transaction.write(pa.RecordBatch.from_pydict({"id": [1], "name": ["insert"]}))

    @pytest.mark.claim("docs/concepts/guarantees.md: `upsert` and `delete` may be repeated")
    def test_last_row_of_a_key_wins_and_deletes_can_be_repeated(self, new_database: NewDatabase) -> None:
        options = {"keys": ("id",), "operation": "name", "columns": (("name", "name"),)}
        database = new_database("idempotent", **options)
        backend = begun(database.make())
        for _ in range(2):
            transaction = backend.start(TaskScope(epoch(1), OWNER, 0))
            operations = {"id": [1, 2, 1, 3], "name": ["upsert", "upsert", "delete", "delete"]}
            transaction.write(pa.RecordBatch.from_pydict(operations))
            transaction.pre_commit()
        assert [row["id"] for row in database.visible()] == [2]


@pytest.mark.parametrize("delivery", ["at_least_once", "idempotent"])
@pytest.mark.claim("docs/concepts/guarantees.md: found before the decision: the epoch is aborted")
def test_violated_constraint_fails_the_task_before_the_decision(new_database: NewDatabase, delivery: Delivery) -> None:
    """The failed task aborts the epoch; no row of its transaction is visible."""
    database = new_database(delivery, keys=("id",))
    database.run(f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, name varchar(20), CHECK (id < 100))")
    transaction = start(begun(database.make()), epoch(1))
    transaction.write(pa.RecordBatch.from_pydict({"id": [1, 100], "name": ["fits", "is refused"]}))
    with pytest.raises(SinkError):
        transaction.pre_commit()
    assert database.visible() == []


@pytest.mark.parametrize("delivery", ["at_least_once", "idempotent"])
def test_delivery_is_an_option_of_the_sink(delivery: Delivery, tmp_path: Path) -> None:
    definition = dbms.sink(f"sqlite:///{tmp_path}/out.sqlite", "rows", keys="id", delivery=delivery)
    assert definition.delivery == delivery
    assert definition.description["delivery"] == delivery


def test_idempotent_delivery_requires_keys(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"dbms.sink does not support delivery='idempotent': without keys .* Supported: exactly"
    ):
        dbms.sink(f"sqlite:///{tmp_path}/out.sqlite", "rows", delivery="idempotent")
