"""The Iceberg sink satisfies the sink contract with a REST catalog and files on a real S3 server, also when answers are
lost."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO

from epochal.backends.iceberg import address
from epochal.backends.tables.commit_protocol import HeadMoved
from epochal.errors import SinkUnavailable
from epochal.secrets import secret
from epochal.testing.contract import DegradedSinkHarness, Losses, ProxyAnswers, SinkBackendContract, SinkHarness
from epochal.testing.servers.proxy import TcpProxy
from epochal.testing.servers.proxy import proxy as new_proxy
from epochal.testing.servers.s3 import WAREHOUSE, SeaweedServer
from epochal.testing.sink_contract import SCHEMA, DecidedEpochs, epoch, pre_commit, rows, same
from tests.kit.evolving_tables import MORE, amounts, begun, late_addition, put, sorted_rows
from tests.kit.iceberg_tables import IcebergCatalog

pytestmark = [pytest.mark.server, pytest.mark.slow]


class RestCatalog(IcebergCatalog):
    """A table of the server's catalog. ``uri``: of a proxy before the catalog; the test reads directly."""

    def __init__(self, server: SeaweedServer, folder: Path, uri: str | None = None) -> None:
        variables = server.environment()
        key, password = variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"]
        for name, value in {"key": key, "secret": password, "credential": f"{key}:{password}"}.items():
            (folder / name).write_text(value)
        properties = {
            "type": "rest",
            "warehouse": f"s3://{WAREHOUSE}",
            "credential": secret(f"file:{folder / 'credential'}"),
            "s3.endpoint": server.endpoint,
            "s3.region": variables["AWS_REGION"],
            "s3.access-key-id": secret(f"file:{folder / 'key'}"),
            "s3.secret-access-key": secret(f"file:{folder / 'secret'}"),
        }
        name = f"tests.t{secrets.token_hex(6)}"
        super().__init__({**properties, "uri": server.catalog_url}, name)
        self.direct = self.catalog
        if uri is not None:
            super().__init__({**properties, "uri": uri}, name)
            self.catalog = self.direct

    def leftovers(self) -> list[str]:
        table = self.table()
        if table is None:
            return []
        named = {task.file.file_path for task in table.scan().plan_files()}
        io = table.io
        assert isinstance(io, PyArrowFileIO)
        scheme, host, path = io.parse_location(f"{table.location()}/data/epochal", io.properties)
        selector = fs.FileSelector(path, allow_not_found=True, recursive=True)
        found = io.fs_by_scheme(scheme, host).get_file_info(selector)
        return sorted(f"s3://{info.path}" for info in found if info.is_file and f"s3://{info.path}" not in named)


@pytest.fixture
def decided() -> DecidedEpochs:
    return DecidedEpochs()


class TestIcebergOnRest(SinkBackendContract):
    @pytest.fixture
    def harness(self, s3_server: SeaweedServer, tmp_path: Path) -> SinkHarness:
        return RestCatalog(s3_server, tmp_path)


@pytest.fixture(scope="module")
def catalog_proxy(s3_server: SeaweedServer) -> Iterator[TcpProxy]:
    """A proxy before the catalog; files are reached directly."""
    with new_proxy(int(s3_server.catalog_url.rpartition(":")[2])) as between:
        yield between


@pytest.fixture(scope="module")
def losses(catalog_proxy: TcpProxy) -> Losses:
    return Losses(ProxyAnswers(catalog_proxy))


@pytest.mark.alternating(3)
class TestIcebergOnRestDegraded(SinkBackendContract):
    """Each answer of the catalog is lost once: its connection is cut when the answer arrives."""

    @pytest.fixture
    def harness(self, s3_server: SeaweedServer, catalog_proxy: TcpProxy, losses: Losses, tmp_path: Path) -> SinkHarness:
        return DegradedSinkHarness(RestCatalog(s3_server, tmp_path, url_of(catalog_proxy)), losses)


def url_of(between: TcpProxy) -> str:
    return f"http://127.0.0.1:{between.port}"


def test_the_catalog_is_away_during_a_commit(
    s3_server: SeaweedServer, catalog_proxy: TcpProxy, tmp_path: Path, decided: DecidedEpochs
) -> None:
    orders = RestCatalog(s3_server, tmp_path, url_of(catalog_proxy))
    sink = orders.make()
    sink.check(SCHEMA)
    sink.recover(epoch(0))
    handle = pre_commit(sink, epoch(1), rows(1))
    catalog_proxy.cut()
    with pytest.raises(SinkUnavailable, match=r"Sink 'out' \(iceberg:http.*could not read the table"):
        decided.commit(sink, epoch(1), [handle])
    catalog_proxy.heal()
    decided.commit(sink, epoch(1), [handle])
    assert same(orders.visible(), rows(1))


def test_manifests_are_merged_on_an_object_store(
    s3_server: SeaweedServer, tmp_path: Path, decided: DecidedEpochs
) -> None:
    orders = RestCatalog(s3_server, tmp_path)
    orders.catalog.create_table(
        orders.address.table, SCHEMA, properties={"commit.manifest.min-count-to-merge": "3", "format-version": "2"}
    )
    sink = orders.make()
    sink.check(SCHEMA)
    sink.recover(epoch(0))
    for number in range(1, 13):
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(number))])
    table = orders.table()
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) <= 2 + 2 + 2
    assert same(orders.visible(), rows(*range(1, 13)))


def test_columns_are_added_once(s3_server: SeaweedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a late request, which the catalog has to refuse by the requirements of the commit."""
    orders = RestCatalog(s3_server, tmp_path)
    orders.add_columns = True
    put(begun(orders), 1, [{"id": 1, "name": "1"}], SCHEMA)
    late = late_addition(orders, monkeypatch)
    sink = begun(orders, MORE, attempt=2, at=1)
    with pytest.raises(HeadMoved):
        late.commit()
    put(sink, 2, amounts((2, 1.5)), MORE)
    assert sorted_rows(orders.visible()) == amounts((1, None), (2, 1.5))


def test_a_catalog_that_does_not_answer_is_not_waited_for_forever(
    s3_server: SeaweedServer, catalog_proxy: TcpProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_ANSWER_SECONDS", 1)
    sink = RestCatalog(s3_server, tmp_path, url_of(catalog_proxy)).make()
    sink.check(SCHEMA)
    catalog_proxy.hold()
    try:
        with pytest.raises(SinkUnavailable, match="could not read the table"):
            sink.check(SCHEMA)
    finally:
        catalog_proxy.heal()
