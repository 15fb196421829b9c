"""Trouble between a sink and its server at the worst of moments: requests and answers lost, late, or held for ever.

The servers are real, and behind the test kit's proxy. Whatever happens to a request of the commit, the commit is made
again until it returns, as a driver does, and by a successor; then every row is there exactly once.
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
TRIES = 30
LATE_SECONDS = 0.5
ANSWER_SECONDS = 1.5
"""How long the clients here wait for an answer that never comes."""


def committed(backend: SinkBackend, scope: EpochScope, handles: Sequence[Handle]) -> list[EpochalError]:
    """Commit as a driver does: again and again. What went wrong meanwhile."""
    failures: list[EpochalError] = []
    for _ in range(TRIES):
        try:
            backend.commit(scope, handles)
            return failures
        except Fenced:
            raise
        except EpochalError as error:
            failures.append(error)
            time.sleep(0.1)
    raise AssertionError(f"never committed: {failures[-1]}")


def through(harness: SinkHarness, before: TcpProxy, kind: Kind, asked: Asked) -> list[EpochalError]:
    """Three epochs, the second in trouble; then its commit once more, by a successor. What went wrong meanwhile."""
    backend = harness.make()
    backend.check(SCHEMA)
    backend.recover(EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None))
    backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1))])
    handles = [pre_commit(backend, epoch(2), rows(2, 3), 0), pre_commit(backend, epoch(2), rows(4), 1)]
    with before.trouble(kind, asked, LATE_SECONDS) as trouble:
        failures = committed(backend, epoch(2), handles)
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
    def test_a_request_of_the_commit(self, kafka_server: KafkaServer, tmp_path: Path, kind: Kind, asked: Asked) -> None:
        patience = {"socket_timeout_ms": int(ANSWER_SECONDS * 1000)}
        topic = Topic(
            kafka_server,
            tmp_path,
            connection=Connection(kafka_server.bootstrap_through_proxy, patience),
            transaction_timeout_seconds=3 * ANSWER_SECONDS,
        )
        through(topic, kafka_server.proxy, kind, asked)

    @LONG
    def test_fencing(self, kafka_server: KafkaServer, tmp_path: Path, kind: Kind) -> None:
        patience = {"socket_timeout_ms": int(ANSWER_SECONDS * 1000)}
        topic = Topic(kafka_server, tmp_path, connection=Connection(kafka_server.bootstrap_through_proxy, patience))
        backend = topic.make()
        with kafka_server.proxy.trouble(kind, kafka_request(22), LATE_SECONDS) as trouble:
            for _ in range(TRIES):
                try:
                    backend.recover(EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None))
                    break
                except EpochalError:
                    time.sleep(0.1)
            assert trouble.met.is_set()
        backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows(1))])
        assert same(topic.visible(), rows(1))


@pytest.fixture
def before_postgresql(postgresql_server: PostgresqlServer) -> Iterator[TcpProxy]:
    with proxy(postgresql_server.port) as before:
        yield before


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.backends.dbms.patience.ANSWER_SECONDS", ANSWER_SECONDS)


@pytest.mark.parametrize("kind", KINDS)
class TestPostgresql:
    @pytest.mark.parametrize("request_of", [*(pytest.param(it, marks=LONG) for it in ("UPDATE", "COPY")), "COMMIT"])
    def test_a_statement_of_the_commit(
        self,
        postgresql_url: str,
        before_postgresql: TcpProxy,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: Kind,
        request_of: str,
    ) -> None:
        database = DbmsThroughProxy(postgresql_url, tmp_path, monkeypatch)
        database.before = before_postgresql
        failures = through(database, before_postgresql, kind, containing(request_of.encode()))
        database.close()
        if kind == "delay":
            assert failures == []
        elif request_of == "COMMIT":
            assert isinstance(failures[0], OutcomeUnknown)

    def test_commit_prepared(
        self,
        postgresql_url: str,
        before_postgresql: TcpProxy,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: Kind,
    ) -> None:
        database = TwoPhaseThroughProxy(postgresql_url, tmp_path, monkeypatch)
        database.before = before_postgresql
        failures = through(database, before_postgresql, kind, containing(b"COMMIT PREPARED"))
        database.close()
        assert [type(failure) for failure in failures] == ([] if kind == "delay" else [OutcomeUnknown])

    def test_prepare(
        self,
        postgresql_url: str,
        before_postgresql: TcpProxy,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: Kind,
    ) -> None:
        """The task fails, and its epoch with it; what it may have prepared is swept, and holds no row's lock."""
        database = TwoPhaseThroughProxy(postgresql_url, tmp_path, monkeypatch)
        database.before = before_postgresql
        backend = database.make()
        backend.check(SCHEMA)
        backend.recover(EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None))
        with before_postgresql.trouble(kind, containing(b"PREPARE TRANSACTION"), LATE_SECONDS) as trouble:
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
def before_hdfs(hdfs_server: HdfsServer) -> Iterator[TcpProxy]:
    with proxy(int(hdfs_server.url.rpartition(":")[2])) as before:
        yield before


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=LONG) if kind == "hold" else kind for kind in KINDS])
@pytest.mark.parametrize(
    "operation", [*(pytest.param(it, marks=LONG) for it in ("MKDIRS", "RENAME")), "epoch%3D0000000002&renameoptions"]
)
def test_hdfs(hdfs_server: HdfsServer, before_hdfs: TcpProxy, kind: Kind, operation: str) -> None:
    """Making the folder, gathering a file, and the one rename that shows the epoch."""
    folder = FolderThroughProxy(hdfs_server)
    folder.before, folder.timeout_seconds = before_hdfs, ANSWER_SECONDS
    failures = through(folder, before_hdfs, kind, containing(operation.encode()))
    assert failures == [] if kind == "delay" else all(isinstance(failure, OutcomeUnknown) for failure in failures)
