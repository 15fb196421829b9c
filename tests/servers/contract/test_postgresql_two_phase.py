"""The two-phase PostgreSQL sink satisfies the sink contract, and its own guarantees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from epochal.backends.postgresql_two_phase import PostgresqlTwoPhaseBackend
from epochal.contracts.backend import SinkPlace
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import SinkError
from epochal.testing.contract import (
    DegradedSinkHarness,
    Losses,
    ProxyAnswers,
    SinkBackendContract,
    SinkHarness,
    StepAnswers,
)
from epochal.testing.servers.postgresql import PostgresqlServer
from epochal.testing.servers.proxy import TcpProxy
from epochal.testing.sink_contract import APPLICATION, BRANCH, SCHEMA, epoch, pre_commit, rows, same
from tests.kit.databases import TABLE, OrderedChanges, TestDatabase, ThroughProxy, manifest

pytestmark = pytest.mark.server


class TwoPhaseDatabase(TestDatabase, SinkHarness):
    def make(self) -> PostgresqlTwoPhaseBackend:
        return self.registered(PostgresqlTwoPhaseBackend(SinkPlace("out", self.store), self.address, self.writing))

    def leftovers(self) -> list[str]:
        return [
            row["gid"] for row in self.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        ]


class TwoPhaseThroughProxy(ThroughProxy, TwoPhaseDatabase):
    __test__ = False


@pytest.fixture
def database(postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoPhaseDatabase]:
    database = TwoPhaseDatabase(postgresql_url, tmp_path, monkeypatch)
    yield database
    database.close()


@pytest.mark.claim("Thesis, table 4.1, DBMS (MVCC)")
class TestPostgresqlTwoPhase(SinkBackendContract):
    @pytest.fixture
    def harness(self, database: TwoPhaseDatabase) -> SinkHarness:
        return database


@pytest.mark.long  # TestPostgresqlTwoPhaseWithLostAnswers loses more answers
class TestPostgresqlTwoPhaseDegraded(SinkBackendContract):
    """The answer after each step is lost once; each call is repeated from another process."""

    @pytest.fixture
    def harness(self, database: TwoPhaseDatabase) -> SinkHarness:
        return DegradedSinkHarness(database, Losses(StepAnswers()))


@pytest.fixture(scope="module")
def losses(postgresql_proxy: TcpProxy) -> Losses:
    return Losses(ProxyAnswers(postgresql_proxy))


@pytest.mark.slow
class TestPostgresqlTwoPhaseWithLostAnswers(SinkBackendContract):
    """Each answer of the server is lost once."""

    @pytest.fixture
    def harness(
        self,
        postgresql_url: str,
        postgresql_proxy: TcpProxy,
        losses: Losses,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[SinkHarness]:
        database = TwoPhaseThroughProxy(postgresql_url, tmp_path, monkeypatch)
        database.proxy = postgresql_proxy
        yield DegradedSinkHarness(database, losses)
        database.close()


def started(database: TwoPhaseDatabase) -> PostgresqlTwoPhaseBackend:
    backend = database.make()
    backend.check(SCHEMA)
    backend.recover(at(0))
    return backend


def at(latest: int, attempt: int = 1) -> EpochScope:
    return EpochScope(APPLICATION, EpochKey(BRANCH, latest), attempt, None)


class TestValidation:
    def test_database_refuses_rows_before_the_decision(self, database: TwoPhaseDatabase) -> None:
        """Constraints that only the database can check: uniqueness among existing rows, a CHECK."""
        database.run(f"CREATE TABLE {TABLE} (id bigint unique, name text, CHECK (id <> 13))")
        backend = started(database)
        backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1, 2))])
        for wrong, message in ((2, r"Key \(id\)=\(2\) already exists"), (13, r"Failing row contains \(13,")):
            with pytest.raises(SinkError, match=rf"Sink 'out', subtask 0, could not write .*{message}"):
                pre_commit(backend, epoch(2), rows(wrong))
        assert database.leftovers() == []
        backend.commit(epoch(3, parent=1), [pre_commit(backend, epoch(3, parent=1), rows(3))])
        assert same(database.visible(), rows(1, 2, 3))

    def test_deferred_constraints_are_checked_at_prepare(self, database: TwoPhaseDatabase) -> None:
        database.run(f"CREATE TABLE {TABLE} (id bigint unique deferrable initially deferred, name text)")
        backend = started(database)
        with pytest.raises(SinkError, match=r"could not pre-commit .*Key \(id\)=\(1\) already exists"):
            pre_commit(backend, epoch(1), rows(1, 1))
        assert database.leftovers() == []

    def test_upserts_inserts_and_deletes_are_committed(
        self, postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database = TwoPhaseDatabase(postgresql_url, tmp_path, monkeypatch, keys=("id",), operation="does")
        schema = pa.schema([pa.field("does", pa.string()), *SCHEMA])
        backend = database.make()
        backend.check(schema)
        backend.recover(at(0))
        epochs = [
            [("upsert", 1, "a"), ("insert", 2, "b"), ("upsert", 1, "é漢"), ("upsert", 3, None)],
            [("delete", 2, None), ("upsert", 1, "new"), ("insert", 4, "d")],
        ]
        for number, changes in enumerate(epochs, 1):
            transaction = backend.start(TaskScope(epoch(number), "out", 0))
            given = [dict(zip(schema.names, change, strict=True)) for change in changes]
            transaction.write(pa.RecordBatch.from_pylist(given, schema=schema))
            backend.commit(epoch(number), [transaction.pre_commit()])
        assert {row["id"]: row["name"] for row in database.visible()} == {1: "new", 3: None, 4: "d"}
        database.close()

    @pytest.mark.parametrize(
        "kind", [pa.int64(), pa.string(), pa.timestamp("us", "UTC"), pa.decimal128(20, 2)], ids=str
    )
    def test_older_rows_of_later_epochs_do_not_replace_newer_ones(
        self, postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
    ) -> None:
        database = TwoPhaseDatabase(postgresql_url, tmp_path, monkeypatch, **OrderedChanges.writing)
        changes = OrderedChanges(kind, Random(29))
        backend = database.make()
        backend.check(changes.schema)
        backend.recover(at(0))
        for number in range(1, 30):
            transaction = backend.start(TaskScope(epoch(number), "out", 0))
            transaction.write(changes.batch())
            backend.commit(epoch(number), [transaction.pre_commit()])
            found = {row["id"]: row["name"] for row in database.visible()}
            assert found == {id: name for id, (_, name) in changes.newest.items()}, number
        database.close()

    def test_key_in_two_subtasks_aborts_the_epoch(
        self, database: TwoPhaseDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("epochal.backends.postgresql_two_phase.transaction.LOCK_SECONDS", 1)
        database.run(f"CREATE TABLE {TABLE} (id bigint primary key, name text)")
        backend = started(database)
        first = pre_commit(backend, epoch(1), rows(1), 0)
        with pytest.raises(SinkError, match="another transaction holds a lock"):
            pre_commit(backend, epoch(1), rows(1), 1)
        backend.abort(epoch(1), [first])
        assert database.leftovers() == []


class TestRecovery:
    def test_second_run_with_empty_state_is_refused(self, database: TwoPhaseDatabase) -> None:
        for branch in (f"{APPLICATION}-00000001", f"{APPLICATION}-00000002"):
            backend, scope = database.make(), EpochScope(APPLICATION, EpochKey(branch, 1), 1, None)
            backend.check(SCHEMA)
            if branch.endswith("2"):
                with pytest.raises(SinkError, match=r"a second time.*FROM _epochal_ledger WHERE target = '"):
                    backend.recover(EpochScope(APPLICATION, EpochKey(branch, 0), 1, None))
                continue
            backend.recover(EpochScope(APPLICATION, EpochKey(branch, 0), 1, None))
            backend.commit(scope, [pre_commit(backend, scope, rows(1))])
        assert same(database.visible(), rows(1))

    def test_transactions_after_the_latest_prepared_epoch_are_rolled_back(self, database: TwoPhaseDatabase) -> None:
        backend = started(database)
        decided = pre_commit(backend, epoch(1), rows(1))
        assert pre_commit(backend, epoch(2), rows(2)).rows == 1
        backend.recover(at(1, attempt=2))
        assert database.leftovers() == [decided.payload["gid"]]
        backend.commit(epoch(1, attempt=2), [decided])
        assert same(database.visible(), rows(1))

    def test_transactions_not_named_in_a_manifest_are_rolled_back(self, database: TwoPhaseDatabase) -> None:
        backend = started(database)
        named, lost = pre_commit(backend, epoch(1), rows(1)), pre_commit(backend, epoch(1), rows(99))
        assert len(database.leftovers()) == 2
        database.store.write_manifest(manifest(1, backend.target, (named,)))
        backend.recover(at(1, attempt=2))
        assert database.leftovers() == [named.payload["gid"]]
        backend.abort(epoch(1), [lost])
        backend.commit(epoch(1, attempt=2), [named])
        assert same(database.visible(), rows(1))

    def test_transactions_of_other_databases_are_not_touched(
        self,
        database: TwoPhaseDatabase,
        postgresql_server: PostgresqlServer,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        other = TwoPhaseDatabase(postgresql_server.create_database(), tmp_path / "other", monkeypatch)
        prepared = pre_commit(started(other), epoch(5), rows(5))
        started(database).recover(at(0, attempt=9))
        assert other.leftovers() == [prepared.payload["gid"]]
        started(other).abort(epoch(5), [prepared])
        other.close()

    def test_transaction_rolled_back_by_hand_is_reported_as_lost(self, database: TwoPhaseDatabase) -> None:
        backend = started(database)
        handle = pre_commit(backend, epoch(1), rows(1))
        backend.abort(epoch(1), [handle])
        with pytest.raises(SinkError, match=r"prepared transaction epochal:main:out:1:.* is lost"):
            backend.commit(epoch(1), [handle])

    def test_ledger_deletes_old_epochs(self, database: TwoPhaseDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("epochal.backends.postgresql_two_phase.ledger.KEPT_EPOCHS", 2)
        backend = started(database)
        for number in range(1, 6):
            backend.commit(epoch(number), [pre_commit(backend, epoch(number), rows(number))])
        assert [row["epoch"] for row in database.rows("SELECT epoch FROM _epochal_ledger ORDER BY 1")] == [3, 4, 5]
