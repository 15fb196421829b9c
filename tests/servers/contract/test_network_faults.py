"""Network faults between a sink and its server during a commit: lost, delayed and held requests and answers.

The servers are real and behind a proxy. The commit is repeated until it returns, as in a driver, and then by a
successor; afterwards every row is visible exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from epochal.backends.kafka.connection import Connection
from epochal.contracts.backend import SinkBackend
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.errors import EpochalError, Fenced, OutcomeUnknown
from epochal.testing.contract import SinkHarness
from epochal.testing.servers.hdfs import HdfsServer
from epochal.testing.servers.kafka import KafkaServer
from epochal.testing.servers.postgresql import PostgresqlServer
from epochal.testing.servers.proxy import KINDS, Asked, Kind, TcpProxy, containing, kafka_request, proxy
from epochal.testing.sink_contract import APPLICATION, BRANCH, SCHEMA, epoch, pre_commit, rows, same
from tests.kit.databases import DbmsThroughProxy
from tests.servers.contract.hdfs_folder import FolderThroughProxy
from tests.servers.contract.test_kafka_sink import Topic
from tests.servers.contract.test_postgresql_two_phase import TwoPhaseThroughProxy

pytestmark = [pytest.mark.server, pytest.mark.slow]

LONG = pytest.mark.long
MAX_COMMITS = 30
DELAY_SECONDS = 0.5
ANSWER_SECONDS = 1.5
"""Timeout of the clients for an answer that never arrives."""


def commit_until_done(backend: SinkBackend, scope: EpochScope, handles: Sequence[Handle]) -> list[EpochalError]:
    """Repeat a commit until it succeeds, as a driver does. Returns the errors before."""
    failures: list[EpochalError] = []
    for _ in range(MAX_COMMITS):
        try:
            backend.commit(scope, handles)
            return failures
        except Fenced:
            raise
        except EpochalError as error:
            failures.append(error)
            time.sleep(0.1)
    raise AssertionError(f"never committed: {failures[-1]}")


def check_commit_with_fault(harness: SinkHarness, proxy: TcpProxy, kind: Kind, asked: Asked) -> list[EpochalError]:
    """Commit three epochs, the second under a fault, and one by a successor. Returns the errors of the second epoch."""
    backend = harness.make()
    backend.check(SCHEMA)
    backend.recover(EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None))
    backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1))])
    handles = [pre_commit(backend, epoch(2), rows(2, 3), 0), pre_commit(backend, epoch(2), rows(4), 1)]
    with proxy.trouble(kind, asked, DELAY_SECONDS) as trouble:
        failures = commit_until_done(backend, epoch(2), handles)
        assert trouble.met.is_set()
    assert same(harness.visible(), rows(1, 2, 3, 4))
    backend.commit(epoch(3), [pre_commit(backend, epoch(3), rows(5))])
    successor = harness.make()
    successor.recover(EpochScope(APPLICATION, EpochKey(BRANCH, 3), 2, None))
    successor.commit(epoch(4, attempt=2), [pre_commit(successor, epoch(4, attempt=2), rows(6))])
    assert same(harness.visible(), rows(1, 2, 3, 4, 5, 6))
    assert harness.leftovers() == []
    return failures


@pytest.mark.parametrize("kind", KINDS)
class TestKafka:
    @pytest.mark.parametrize(
        "asked",
        [pytest.param(kafka_request(0), marks=LONG, id="produce"), pytest.param(kafka_request(26), id="end")],
    )
    def test_kafka_request_of_the_commit(
        self, kafka_server: KafkaServer, tmp_path: Path, kind: Kind, asked: Asked
    ) -> None:
        client_options = {"socket_timeout_ms": int(ANSWER_SECONDS * 1000)}
        topic = Topic(
            kafka_server,
            tmp_path,
            connection=Connection(kafka_server.bootstrap_through_proxy, client_options),
            transaction_timeout_seconds=3 * ANSWER_SECONDS,
        )
        check_commit_with_fault(topic, kafka_server.proxy, kind, asked)

    @LONG
    def test_kafka_fencing_request(self, kafka_server: KafkaServer, tmp_path: Path, kind: Kind) -> None:
        client_options = {"socket_timeout_ms": int(ANSWER_SECONDS * 1000)}
        topic = Topic(
            kafka_server, tmp_path, connection=Connection(kafka_server.bootstrap_through_proxy, client_options)
        )
        backend = topic.make()
        with kafka_server.proxy.trouble(kind, kafka_request(22), DELAY_SECONDS) as trouble:
            for _ in range(MAX_COMMITS):
                try:
                    backend.recover(EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None))
                    break
                except EpochalError:
                    time.sleep(0.1)
            assert trouble.met.is_set()
        backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1))])
        assert same(topic.visible(), rows(1))


@pytest.fixture
def postgresql_proxy(postgresql_server: PostgresqlServer) -> Iterator[TcpProxy]:
    with proxy(postgresql_server.port) as running:
        yield running


@pytest.fixture(autouse=True)
def _short_answer_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.backends.dbms.patience.ANSWER_SECONDS", ANSWER_SECONDS)


@pytest.mark.parametrize("kind", KINDS)
class TestPostgresql:
    @pytest.mark.parametrize(
        "statement", [*(pytest.param(statement, marks=LONG) for statement in ("UPDATE", "COPY")), "COMMIT"]
    )
    def test_sql_statement_of_the_commit(
        self,
        postgresql_url: str,
        postgresql_proxy: TcpProxy,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: Kind,
        statement: str,
    ) -> None:
        database = DbmsThroughProxy(postgresql_url, tmp_path, monkeypatch)
        database.proxy = postgresql_proxy
        failures = check_commit_with_fault(database, postgresql_proxy, kind, containing(statement.encode()))
        database.close()
        if kind == "delay":
            assert failures == []
        elif statement == "COMMIT":
            assert isinstance(failures[0], OutcomeUnknown)

    def test_commit_prepared(
        self,
        postgresql_url: str,
        postgresql_proxy: TcpProxy,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: Kind,
    ) -> None:
        database = TwoPhaseThroughProxy(postgresql_url, tmp_path, monkeypatch)
        database.proxy = postgresql_proxy
        failures = check_commit_with_fault(database, postgresql_proxy, kind, containing(b"COMMIT PREPARED"))
        database.close()
        assert [type(failure) for failure in failures] == ([] if kind == "delay" else [OutcomeUnknown])

    def test_prepare_transaction(
        self,
        postgresql_url: str,
        postgresql_proxy: TcpProxy,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: Kind,
    ) -> None:
        """The task and its epoch fail; a transaction that it may have prepared is swept and holds no row locks."""
        database = TwoPhaseThroughProxy(postgresql_url, tmp_path, monkeypatch)
        database.proxy = postgresql_proxy
        backend = database.make()
        backend.check(SCHEMA)
        backend.recover(EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None))
        with postgresql_proxy.trouble(kind, containing(b"PREPARE TRANSACTION"), DELAY_SECONDS) as trouble:
            if kind == "delay":
                pre_commit(backend, epoch(1), rows(1))
            else:
                with pytest.raises(EpochalError, match=r"Sink 'out', subtask 0, could not pre-commit at postgresql"):
                    pre_commit(backend, epoch(1), rows(1))
            assert trouble.met.is_set()
        backend.sweep(epoch(1), [])
        assert database.leftovers() == []
        backend.commit(epoch(2, parent=0), [pre_commit(backend, epoch(2, parent=0), rows(1))])
        assert same(database.visible(), rows(1))
        database.close()


@pytest.fixture
def name_node_proxy(hdfs_server: HdfsServer) -> Iterator[TcpProxy]:
    with proxy(int(hdfs_server.url.rpartition(":")[2])) as running:
        yield running


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=LONG) if kind == "hold" else kind for kind in KINDS])
@pytest.mark.parametrize(
    "operation",
    [*(pytest.param(name, marks=LONG) for name in ("MKDIRS", "RENAME")), "epoch%3D0000000002&renameoptions"],
)
def test_hdfs_request_of_the_commit(
    hdfs_server: HdfsServer, name_node_proxy: TcpProxy, kind: Kind, operation: str
) -> None:
    """The requests that create the folder, gather a file, and rename the epoch's folder to make it visible."""
    folder = FolderThroughProxy(hdfs_server)
    folder.proxy, folder.timeout_seconds = name_node_proxy, ANSWER_SECONDS
    failures = check_commit_with_fault(folder, name_node_proxy, kind, containing(operation.encode()))
    assert failures == [] if kind == "delay" else all(isinstance(failure, OutcomeUnknown) for failure in failures)
