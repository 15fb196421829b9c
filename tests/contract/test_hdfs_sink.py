"""The HDFS sink keeps the contract of sinks with a real NameNode and DataNode, also when answers are lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from epochal.backends.hdfs.sink import HdfsBackend
from epochal.contracts.backend import SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope
from epochal.errors import OutcomeUnknown
from epochal.testing.contract import SinkBackendContract, SinkHarness
from epochal.testing.servers.hdfs import HdfsServer
from tests.contract.hdfs_folder import DegradedHdfs, HdfsFolder, losing_each_answer

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
class TestHdfsSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, hdfs_server: HdfsServer, format: str) -> SinkHarness:
        return HdfsFolder(hdfs_server, format)


class Degraded(HdfsBackend):
    """Each commit loses one answer after the other, each time as a new process; then comes twice, every request too."""

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        for hdfs in losing_each_answer(self._hdfs.address):
            with suppress(OutcomeUnknown):
                self._through(hdfs).commit(epoch, handles)
        for _ in range(2):
            self._through(DegradedHdfs(self._hdfs.address, twice=True)).commit(epoch, handles)

    def _through(self, hdfs: DegradedHdfs) -> HdfsBackend:
        return HdfsBackend(SinkPlace("out"), hdfs, self._path, self._format)


class TestHdfsSinkDegraded(SinkBackendContract):
    @pytest.fixture
    def harness(self, hdfs_server: HdfsServer) -> SinkHarness:
        return HdfsFolder(hdfs_server, "json", Degraded)
