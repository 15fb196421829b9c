"""The Delta sink satisfies the sink contract on a real S3 server, also when answers are lost."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from deltalake import DeltaTable

from epochal.backends.delta_lake import address
from epochal.backends.delta_lake.address import DeltaAddress
from epochal.backends.delta_lake.sink import DeltaSink
from epochal.background.task import BackgroundTask
from epochal.contracts.backend import SinkPlace
from epochal.errors import EpochalError
from epochal.testing.contract import DegradedSinkHarness, Losses, SinkBackendContract, SinkHarness
from epochal.testing.servers.s3 import READY_BUCKET, SeaweedServer
from epochal.testing.servers.s3_proxy import S3Proxy
from epochal.testing.servers.s3_proxy import s3_proxy as new_proxy
from epochal.testing.sink_contract import SCHEMA, DecidedEpochs, epoch, pre_commit, rows, same
from tests.servers.contract.s3_folder import options_of
from tests.servers.contract.test_s3_sink import S3Answers

pytestmark = [pytest.mark.server, pytest.mark.slow]


class DeltaObjects(SinkHarness):
    """A table on the server. ``endpoint``: of a proxy for the sink; the test reads directly."""

    def __init__(self, server: SeaweedServer, folder: Path, endpoint: str | None = None) -> None:
        self.prefix = f"tests/{secrets.token_hex(8)}/orders"
        self.url = f"s3://{READY_BUCKET}/{self.prefix}"
        self.address, _ = DeltaAddress.checked("delta.sink", self.url, options_of(server, folder, endpoint))
        self.direct, _ = DeltaAddress.checked("delta.sink", self.url, options_of(server, folder))
        self.store = server.store(READY_BUCKET, self.prefix)

    def make(self) -> DeltaSink:
        return DeltaSink(SinkPlace("out"), self.address)

    def table(self) -> DeltaTable | None:
        if not self._objects("_delta_log"):
            return None
        return DeltaTable(self.url, storage_options=self.direct.storage_options())

    def visible(self) -> list[dict[str, Any]]:
        table = self.table()
        return [] if table is None else list(table.to_pyarrow_table().to_pylist())

    def leftovers(self) -> list[str]:
        table = self.table()
        named = set() if table is None else {uri.removeprefix(f"{self.url}/") for uri in table.file_uris()}
        return sorted(set(self._objects("epochal")) - named)

    def _objects(self, folder: str) -> list[str]:
        return [found["path"] for page in obstore.list(self.store, folder) for found in page]


@pytest.fixture
def decided() -> DecidedEpochs:
    return DecidedEpochs()


class TestDeltaOnObjects(SinkBackendContract):
    @pytest.fixture
    def harness(self, s3_server: SeaweedServer, tmp_path: Path) -> SinkHarness:
        return DeltaObjects(s3_server, tmp_path)


@pytest.fixture(scope="module")
def module_proxy(s3_server: SeaweedServer) -> Iterator[S3Proxy]:
    with new_proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def losses(module_proxy: S3Proxy) -> Losses:
    return Losses(S3Answers(module_proxy))


@pytest.mark.alternating(3)
class TestDeltaOnObjectsDegraded(SinkBackendContract):
    """Each answer of the server is lost once: it answers 500 after it has performed a request."""

    @pytest.fixture
    def harness(
        self,
        s3_server: SeaweedServer,
        module_proxy: S3Proxy,
        losses: Losses,
        tmp_path: Path,
    ) -> SinkHarness:
        return DegradedSinkHarness(DeltaObjects(s3_server, tmp_path, module_proxy.endpoint), losses)


def test_the_store_is_away_during_a_commit(
    s3_server: SeaweedServer,
    s3_proxy: S3Proxy,
    tmp_path: Path,
    decided: DecidedEpochs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(address, "PATIENCE_SECONDS", 0.5)
    table = DeltaObjects(s3_server, tmp_path, s3_proxy.endpoint)
    sink = table.make()
    sink.check(SCHEMA)
    sink.recover(epoch(0))
    handle = pre_commit(sink, epoch(1), rows(1))
    s3_proxy.down()
    with pytest.raises(EpochalError, match=r"Sink 'out' \(delta:s3://.*could not read the table"):
        decided.commit(sink, epoch(1), [handle])
    s3_proxy.up()
    decided.commit(sink, epoch(1), [handle])
    assert same(table.visible(), rows(1))


def test_a_request_that_lands_late_commits_nothing_twice(
    s3_server: SeaweedServer, s3_proxy: S3Proxy, tmp_path: Path, decided: DecidedEpochs
) -> None:
    """The entry of the log is held on its way; another driver commits; then it arrives."""
    table = DeltaObjects(s3_server, tmp_path, s3_proxy.endpoint)
    direct = DeltaObjects(s3_server, tmp_path)
    direct.address = table.direct
    slow, quick = table.make(), direct.make()
    for sink in (slow, quick):
        sink.check(SCHEMA)
        sink.recover(epoch(0))
    handle = pre_commit(slow, epoch(1), rows(1))
    s3_proxy.hold(times=1, kinds=("PUT",), containing="00000000000000000001.json")
    commit = BackgroundTask("commit", lambda: decided.commit(slow, epoch(1), [handle]), raises=True)
    s3_proxy.wait_for_held()
    DecidedEpochs().commit(quick, epoch(1), [handle])
    s3_proxy.release()
    commit.result(60)
    assert same(table.visible(), rows(1))
