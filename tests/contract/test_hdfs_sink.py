"""The HDFS sink keeps the contract of sinks, in each of its formats, against a real NameNode and DataNode."""

from __future__ import annotations

import io
import json

import pyarrow.csv
import pyarrow.parquet
import pytest
from hdfs import InsecureClient

from epochal.backends.hdfs.address import address
from epochal.backends.hdfs.client import WebHdfs
from epochal.backends.hdfs.sink import HdfsBackend
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.testing.contract import SinkBackendContract, SinkHarness
from epochal.testing.servers.hdfs import HdfsServer

pytestmark = [pytest.mark.server, pytest.mark.slow]


class HdfsFolder(SinkHarness):
    """A folder of HDFS, read without Epochal: what is not hidden is visible."""

    def __init__(self, server: HdfsServer, format: str) -> None:
        self.server, self.format = server, format
        self.path = f"{server.create_folder()}/out"
        self.client = InsecureClient(server.url, user=server.user)

    def make(self) -> SinkBackend:
        place = address("hdfs.sink", self.server.url, user=self.server.user)
        return HdfsBackend(SinkPlace("out"), WebHdfs(place), self.path, self.format)

    def visible(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for folder in self.client.list(self.path):
            if not folder.startswith(("_", ".")):
                for name in self.client.list(f"{self.path}/{folder}"):
                    with self.client.read(f"{self.path}/{folder}/{name}") as file:
                        found += self._read(file.read())
        return found

    def leftovers(self) -> list[str]:
        staging = f"{self.path}/_staging"
        if self.client.status(staging, strict=False) is None:
            return []
        return [
            f"{folder}/{name}"
            for folder, folders, files in self.client.walk(staging)
            for name in [*files, *(name for name in folders if name.startswith("e"))]
        ]

    def _read(self, data: bytes) -> list[dict[str, object]]:
        match self.format:
            case "parquet":
                return list(pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist())
            case "csv":
                options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
                return list(pyarrow.csv.read_csv(io.BytesIO(data), convert_options=options).to_pylist())
            case _:
                return [json.loads(line) for line in data.splitlines()]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
class TestHdfsSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, hdfs_server: HdfsServer, format: str) -> SinkHarness:
        return HdfsFolder(hdfs_server, format)
