"""The HDFS sink keeps the contract of sinks with a real NameNode and DataNode, also when answers are lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from epochal.testing.contract import DegradedSinkHarness, Losses, ProxyAnswers, SinkBackendContract, SinkHarness
from epochal.testing.servers.hdfs import HdfsServer
from epochal.testing.servers.proxy import TcpProxy, proxy
from tests.servers.contract.hdfs_folder import FolderThroughProxy, HdfsFolder

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.mark.parametrize(
    # How a format is written is the same for every file system: see test_files_sink.
    "format",
    ["parquet", *(pytest.param(it, marks=pytest.mark.long) for it in ("json", "csv"))],
)
@pytest.mark.claim("Thesis, table 4.1, HDFS")
class TestHdfsSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, hdfs_server: HdfsServer, format: str) -> SinkHarness:
        return HdfsFolder(hdfs_server, format)


@pytest.fixture(scope="module")
def before(hdfs_server: HdfsServer) -> Iterator[TcpProxy]:
    with proxy(int(hdfs_server.url.rpartition(":")[2])) as before:
        yield before


@pytest.fixture(scope="module")
def losses(before: TcpProxy) -> Losses:
    return Losses(ProxyAnswers(before))


class TestHdfsSinkDegraded(SinkBackendContract):
    """Each answer of the NameNode is lost once; calls come twice, each from another process."""

    @pytest.fixture
    def harness(self, hdfs_server: HdfsServer, before: TcpProxy, losses: Losses) -> SinkHarness:
        folder = FolderThroughProxy(hdfs_server)
        folder.before = before
        return DegradedSinkHarness(folder, losses)
