"""Snapshots on HDFS: the store on ``webhdfs://``, and a whole application with its state on it."""

from __future__ import annotations

import hashlib
import json
import pickle
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
import requests
from hdfs import InsecureClient

from epochal import Pipeline
from epochal.connectors import hdfs
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.identity import EpochKey
from epochal.engine.execution import Hooks, run
from epochal.errors import FileCorrupt, FileMissing, SnapshotError, StorageFull, StoreUnavailable
from epochal.service.catalog.standalone import standalone_catalog
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.testing.servers.hdfs import HdfsServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture
def store(hdfs_server: HdfsServer) -> SnapshotStore:
    return SnapshotStore(f"{hdfs_server.store_url}{hdfs_server.create_folder()}/store")


def test_written_files_are_read_back(store: SnapshotStore) -> None:
    content = bytes(range(256)) * 40_000  # larger than fsspec's blocks
    file = store.write_file("main/epochs/1/x=1 é.parquet", content, rows=3)
    assert (file.sha256, file.bytes) == (hashlib.sha256(content).hexdigest(), len(content))
    copy: SnapshotStore = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert copy.read_file(file, "main/1") == content
    with copy.open(file, "main/1") as source:
        source.seek(1_000_000)
        assert source.read(5) == content[1_000_000:1_000_005]
    ranges = [(0, 4), (5_000_000, 300), (len(content) - 1, 1)]
    parts = copy.read_ranges(file, ranges, "main/1")
    assert parts == [content[offset : offset + size] for offset, size in ranges]
    store.write(file.path, b"")
    assert store.size(file.path) == 0
    with pytest.raises(FileCorrupt, match=f"does not have the {len(content)} bytes"):
        copy.read_ranges(file, ranges, "main/1")
    assert store.read(file.path) == b""


def test_files_are_listed_and_deleted_and_empty_folders_removed(hdfs_server: HdfsServer, store: SnapshotStore) -> None:
    assert store.list("main") == []
    for path in ("main/b/2", "main/a/1", "other/3", "main/a/.1.tmp"):
        store.write(path, b"x")
    assert store.list("main") == ["main/a/.1.tmp", "main/a/1", "main/b/2"]
    assert store.list("") == ["main/a/.1.tmp", "main/a/1", "main/b/2", "other/3"]
    assert store.delete("main/a/1") is True
    assert store.delete("main/a/1") is False
    store.remove_empty_folder("main/a")  # not empty: stays
    assert store.list("main/a") == ["main/a/.1.tmp"]
    store.delete("main/a/.1.tmp")
    store.remove_empty_folder("main/a")
    filesystem, root = fsspec.core.url_to_fs(store.url)
    assert not filesystem.exists(f"{root}/main/a")
    assert store.list("main") == ["main/b/2"]


def test_damaged_and_missing_files_are_named(store: SnapshotStore) -> None:
    file = store.write_file("main/epochs/1/x.parquet", b"content", rows=3)
    store.write(file.path, b"cOntent")
    with pytest.raises(FileCorrupt, match=r"main/epochs/1/x\.parquet, of main/1"):
        store.read_file(file, "main/1")
    store.write(file.path, b"conten")
    with pytest.raises(FileCorrupt, match="7 bytes"):
        store.open(file, "main/1")
    store.delete(file.path)
    for read in (store.read_file, store.open):
        with pytest.raises(FileMissing, match=r"main/epochs/1/x\.parquet, of main/1, is missing"):
            read(file, "main/1")


class TestFailedWrites:
    """A failed write raises an error and leaves no file under its name."""

    @pytest.fixture
    def filesystem(self, store: SnapshotStore) -> Any:
        """The store's file system, with a session that is closed after this test."""
        store.write("main/old", b"x")
        filesystem, _ = fsspec.core.url_to_fs(store.url)
        yield filesystem
        filesystem._connect()

    @pytest.mark.parametrize("operation", ["CREATE", "APPEND", "RENAME"])
    def test_lost_answer_fails_the_write_unless_it_can_be_verified(
        self, store: SnapshotStore, filesystem: Any, operation: str
    ) -> None:
        send = filesystem.session.send
        lost: list[str] = []

        def lose(request: requests.PreparedRequest, **options: Any) -> requests.Response:
            answer = send(request, **options)
            if f"op={operation}" in str(request.url) and not lost:
                lost.append(operation)
                raise requests.ConnectionError("lost", request=request)
            return answer

        filesystem.session.send = lose
        if operation == "RENAME":  # the store finds the renamed file and reports success
            store.write("main/new", b"content")
        else:
            with pytest.raises(StoreUnavailable, match=r"main/new cannot be written: .*does not answer"):
                store.write("main/new", b"content")
        filesystem._connect()
        assert lost
        assert store.list("") == (["main/new", "main/old"] if operation == "RENAME" else ["main/old"])

    def test_truncated_upload_fails_the_write(self, store: SnapshotStore, filesystem: Any) -> None:
        send = filesystem.session.send

        def cut(request: requests.PreparedRequest, **options: Any) -> requests.Response:
            if request.body and len(request.body) > 3:
                request.body = request.body[:3]
                request.headers["Content-Length"] = "3"
            return send(request, **options)

        filesystem.session.send = cut
        with pytest.raises(SnapshotError, match=r"main/new cannot be written: .*3 of 7 bytes arrived"):
            store.write("main/new", b"content")
        filesystem._connect()
        assert store.list("") == ["main/old"]

    def test_exceeded_quota_fails_the_write(self, hdfs_server: HdfsServer, store: SnapshotStore) -> None:
        root = store.url.removeprefix(hdfs_server.store_url)
        store.write("main/old", b"x")
        hdfs_server.set_quota(root, bytes=1024)
        with pytest.raises(StorageFull, match="main/new"):
            store.write("main/new", b"content")
        hdfs_server.set_quota(root, bytes=2**30, names=3)
        with pytest.raises(StorageFull, match="main/new"):
            store.write("main/new", b"content")
        hdfs_server.set_quota(root, names=100)
        store.write("main/new", b"content")
        assert store.list("") == ["main/new", "main/old"]

    def test_store_in_safe_mode_is_unavailable(self, hdfs_server: HdfsServer, store: SnapshotStore) -> None:
        store.write("main/old", b"x")
        hdfs_server.enter_safe_mode()
        try:
            with pytest.raises(StoreUnavailable, match=r"main/new cannot be written: .*safe mode"):
                store.write("main/new", b"content")
            with pytest.raises(StoreUnavailable, match="safe mode"):
                store.delete("main/old")
            assert store.read("main/old") == b"x"
        finally:
            hdfs_server.leave_safe_mode()

    def test_unreachable_store_is_unavailable(self, store: SnapshotStore) -> None:
        unreachable = SnapshotStore("webhdfs://user@127.0.0.1:1/store")
        for look in (
            lambda: unreachable.list(""),
            lambda: unreachable.read("x"),
            lambda: unreachable.size("x"),
            lambda: unreachable.delete("x"),
            unreachable.probe,
        ):
            with pytest.raises(StoreUnavailable, match="does not answer"):
                look()


SCHEMA = "sensor string, value int"


def wait_for_bases(store: SnapshotStore) -> None:
    """Wait until bases exist and their number no longer grows."""
    deadline, previous = time.monotonic() + 60, -1
    while time.monotonic() < deadline:
        bases = sum("/bases/" in path and path.endswith(".parquet") for path in store.list(""))
        if bases and bases == previous:
            return
        previous = bases
        time.sleep(1.0)
    raise AssertionError("no base was written")


@pytest.mark.long  # without Spark: fault/test_hdfs.py
def test_application_runs_on_hdfs(hdfs_server: HdfsServer, spark: SparkSession, tmp_path: Path) -> None:
    """Source, sink and snapshots are on HDFS; the local disk holds the catalog and the caches only."""
    root = hdfs_server.create_folder()
    client = InsecureClient(hdfs_server.url, user=hdfs_server.user)
    store = SnapshotStore(f"{hdfs_server.store_url}{root}/store")
    pipeline = Pipeline("sensors")
    where = {"user": hdfs_server.user}
    source = hdfs.source(hdfs_server.url, f"{root}/in/*/*.json", format="json", schema=SCHEMA, max_files=1, **where)
    sensors = pipeline.read("events", source).key_by("sensor")
    totals = sensors.aggregate("totals", events="count(*)", total="sum(value)")
    totals.write("out", hdfs.sink(hdfs_server.url, f"{root}/out", format="json", mode="updates", **where))

    def attempt(epochs: int, backend: str) -> ManifestReference:
        catalog = standalone_catalog(f"sqlite:///{tmp_path}/catalog.sqlite", "sensors", "0" * 64)
        catalog.begin_attempt()
        orders = ExecutionOrders(
            application="sensors",
            execution=catalog.execution,
            attempt=catalog.attempt,
            artifact="0" * 64,
            configuration=Configuration(
                epoch_interval_seconds=0, parallelism=2, state_backend=backend, compact_after_epochs=2
            ),
            store=store.url,
            cache_directory=str(tmp_path / backend),
        )
        last: list[int] = []

        def on_epoch(manifest: Manifest) -> None:
            """Wait after epoch 3 for the bases written in the background, so that epoch 4 references them."""
            last.append(manifest.epoch)
            if manifest.epoch == 3:
                wait_for_bases(store)

        run(
            orders,
            pipeline.graph(),
            spark,
            catalog,
            Hooks(on_epoch, epochs_limit=epochs),
        )
        record = catalog.epoch(last[-1])
        assert record is not None and record.manifest is not None
        assert record.state == "committed"
        return record.manifest

    expected: dict[str, tuple[int, int]] = {}
    for day in range(4):
        rows = [{"sensor": f"s{number % 3}", "value": day * 10 + number} for number in range(10)]
        for row in rows:
            events, total = expected.get(str(row["sensor"]), (0, 0))
            expected[str(row["sensor"])] = (events + 1, total + int(row["value"]))
        client.write(f"{root}/in/2013-01-0{day + 1}/a.json", data="".join(json.dumps(row) + "\n" for row in rows))
        client.set_times(f"{root}/in/2013-01-0{day + 1}/a.json", modification_time=(day + 1) * 1000)
    attempt(2, "heap")
    head = attempt(2, "lmdb")  # restored from the store

    state = {
        row["sensor"]: (row["events"], row["total"]) for row in SnapshotReader(store, head).read("totals").to_pylist()
    }
    assert state == expected
    folders = sorted(name for name in client.list(f"{root}/out") if name.startswith("epoch="))
    assert len(folders) == 4
    with client.read(f"{root}/out/{folders[-1]}/{client.list(f'{root}/out/{folders[-1]}')[0]}") as file:
        assert len(file.read().splitlines()) > 0
    assert client.list(f"{root}/out/_staging/{head.branch}") == []
    assert not [path for path in store.list("") if path.endswith(".tmp")]
    assert any("/bases/" in path for path in store.list(""))
    assert store.read_manifest(head).key == EpochKey(head.branch, head.epoch)
