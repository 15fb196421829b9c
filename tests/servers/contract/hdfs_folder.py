"""Helpers of the HDFS tests: a folder read without Epochal, and clients that lose answers."""

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
    """A folder of HDFS, read without Epochal. Hidden files do not count as visible."""

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
        """The visible rows of each folder."""
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
    """A folder whose sink reaches the NameNode through a proxy. The test reads it directly."""

    proxy: TcpProxy
    timeout_seconds = 10.0

    def address(self, **changes: Any) -> HdfsAddress:
        url = f"http://{LOOPBACK}:{self.proxy.port}"
        return super().address(**{"url": url, "timeout_seconds": self.timeout_seconds, **changes})


class DegradedHdfs(WebHdfs):
    """A client that loses one answer: the request is executed, but its answer does not arrive.

    ``lost_answer`` is the number of the answer to lose, counted from 1 in each process.
    """

    def __init__(self, place: HdfsAddress, lost_answer: int = 0) -> None:
        super().__init__(place)
        self.lost_answer = lost_answer
        self.adapter: DegradedAdapter | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"adapter": None}

    def connect(self) -> Any:
        client = super().connect()
        self.adapter = DegradedAdapter(self.lost_answer)
        client._session.mount("http://", self.adapter)
        return client

    @property
    def answers(self) -> int:
        """The number of answers, including the lost one."""
        return self.adapter.answers if self.adapter is not None else 0


def clients_losing_each_answer(place: HdfsAddress) -> Iterator[DegradedHdfs]:
    """Clients that lose the first answer, the second, and so on, until a client has no answer to lose."""
    for lost_answer in count(1):
        hdfs = DegradedHdfs(place, lost_answer)
        yield hdfs
        if hdfs.answers < lost_answer:
            return


class DegradedAdapter(HTTPAdapter):
    def __init__(self, lost_answer: int) -> None:
        super().__init__()
        self.lost_answer, self.answers = lost_answer, 0

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        answer = super().send(request, *arguments, **options)
        self.answers += 1
        if self.answers == self.lost_answer:
            assert answer.content is not None  # reads the whole answer, so that the request is complete
            raise requests.ConnectionError("the answer was lost", request=request)
        return answer
