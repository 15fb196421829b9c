"""What the tests of the HDFS sink share: a folder looked at without Epochal, and ways to HDFS that lose answers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import requests
from hdfs import InsecureClient
from requests.adapters import HTTPAdapter

from epochal.backends.hdfs.address import HdfsAddress, address
from epochal.backends.hdfs.client import WebHdfs
from epochal.backends.hdfs.sink import HdfsBackend
from epochal.contracts.backend import SinkPlace
from epochal.testing.contract import SinkHarness
from epochal.testing.servers.hdfs import HdfsServer
from epochal.testing.servers.process import LOOPBACK
from epochal.testing.servers.proxy import TcpProxy


class HdfsFolder(SinkHarness):
    """A folder of HDFS, read without Epochal: what is not hidden is visible."""

    def __init__(self, server: HdfsServer, format: str = "json") -> None:
        self.server, self.format = server, format
        self.path = f"{server.create_folder()}/out"
        self.client = InsecureClient(server.url, user=server.user)

    def make(self, hdfs: WebHdfs | None = None) -> HdfsBackend:
        return HdfsBackend(SinkPlace("out"), hdfs or WebHdfs(self.address()), self.path, self.format)

    def address(self, **changes: Any) -> HdfsAddress:
        return address("hdfs.sink", **{"url": self.server.url, "user": self.server.user, **changes})

    def visible(self) -> list[dict[str, object]]:
        return [row for rows in self.visible_folders().values() for row in rows]

    def visible_folders(self) -> dict[str, list[dict[str, object]]]:
        """What a reader sees in each folder."""
        if self.client.status(self.path, strict=False) is None:
            return {}
        found: dict[str, list[dict[str, object]]] = {}
        for folder in self.client.list(self.path):
            if not folder.startswith(("_", ".")):
                found[folder] = []
                for name in self.client.list(f"{self.path}/{folder}"):
                    with self.client.read(f"{self.path}/{folder}/{name}") as file:
                        found[folder] += self._read(file.read())
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


class FolderThroughProxy(HdfsFolder):
    """The sink reaches the NameNode through a proxy, the test does not."""

    before: TcpProxy
    timeout_seconds = 10.0

    def address(self, **changes: Any) -> HdfsAddress:
        url = f"http://{LOOPBACK}:{self.before.port}"
        return super().address(**{"url": url, "timeout_seconds": self.timeout_seconds, **changes})


class DegradedHdfs(WebHdfs):
    """A way to HDFS on which answers get lost: what was asked is done, and nobody hears of it.

    ``lost`` is the number of the answer that is lost, counted from 1 in each process.
    """

    def __init__(self, place: HdfsAddress, lost: int = 0) -> None:
        super().__init__(place)
        self.lost = lost
        self.adapter: DegradedAdapter | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"adapter": None}

    def connect(self) -> Any:
        client = super().connect()
        self.adapter = DegradedAdapter(self.lost)
        client._session.mount("http://", self.adapter)
        return client

    @property
    def answers(self) -> int:
        """How many there were, the lost one too."""
        return self.adapter.answers if self.adapter is not None else 0


def losing_each_answer(place: HdfsAddress) -> Iterator[DegradedHdfs]:
    """Ways to HDFS that lose the first answer, the second, .. until one has lost none."""
    for lost in count(1):
        hdfs = DegradedHdfs(place, lost)
        yield hdfs
        if hdfs.answers < lost:
            return


class DegradedAdapter(HTTPAdapter):
    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost, self.answers = lost, 0

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        answer = super().send(request, *arguments, **options)
        self.answers += 1
        if self.answers == self.lost:
            assert answer.content is not None  # it was carried out to its end
            raise requests.ConnectionError("the answer was lost", request=request)
        return answer
