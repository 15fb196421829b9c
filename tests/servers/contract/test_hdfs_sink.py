"""The HDFS sink satisfies the sink contract on a real NameNode and DataNode, also when answers are lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from epochal.testing.contract import DegradedSinkHarness, Losses, ProxyAnswers, SinkBackendContract, SinkHarness
from epochal.testing.servers.hdfs import HdfsServer
from epochal.testing.servers.proxy import TcpProxy, proxy
from tests.servers.contract.hdfs_folder import FolderThroughProxy, HdfsFolder

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.mark.parametrize(
    # test_files_sink covers the formats, whose code does not depend on the file system.
    "format",
    ["parquet", *(pytest.param(format, marks=pytest.mark.long) for format in ("json", "csv"))],
)
@pytest.mark.claim("Thesis, table 4.1, HDFS")
class TestHdfsSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, hdfs_server: HdfsServer, format: str) -> SinkHarness:
        return HdfsFolder(hdfs_server, format)


@pytest.fixture(scope="module")
def name_node_proxy(hdfs_server: HdfsServer) -> Iterator[TcpProxy]:
    with proxy(int(hdfs_server.url.rpartition(":")[2])) as name_node_proxy:
        yield name_node_proxy


@pytest.fixture(scope="module")
def losses(name_node_proxy: TcpProxy) -> Losses:
    return Losses(ProxyAnswers(name_node_proxy))


class TestHdfsSinkDegraded(SinkBackendContract):
    """Each answer of the NameNode is lost once; each call is repeated from another process."""

    @pytest.fixture
    def harness(self, hdfs_server: HdfsServer, name_node_proxy: TcpProxy, losses: Losses) -> SinkHarness:
        folder = FolderThroughProxy(hdfs_server)
        folder.proxy = name_node_proxy
        return DegradedSinkHarness(folder, losses)
