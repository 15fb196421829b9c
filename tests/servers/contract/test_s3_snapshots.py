"""Snapshots in an object store: the store on a real S3 server, its faults, and an application with its state on it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from epochal import Pipeline
from epochal.connectors import files
from epochal.contracts.catalog import Directive, DriverStatus
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.identity import EpochKey
from epochal.engine.execution import Hooks, run
from epochal.errors import EnvironmentProblem, FileCorrupt, FileMissing, StoreRefuses, StoreUnavailable
from epochal.service.catalog.standalone import standalone_catalog
from epochal.service.runtime.store_claim import check_writable
from epochal.snapshots import object_store, store_credentials
from epochal.snapshots.manifest import FileReference, Manifest
from epochal.snapshots.object_store import ObjectStoreFiles
from epochal.snapshots.packs import Pack
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.testing.servers.s3 import S3Server, SeaweedServer
from epochal.testing.servers.s3_proxy import S3Proxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server, pytest.mark.slow]


def in_environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Use the variables of an S3 client, and none of this machine."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_store, "_kept", {})


@pytest.fixture
def store(s3_proxy: S3Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> SnapshotStore:
    """A store below a prefix of an empty bucket, through the proxy. Failing requests are repeated for a second."""
    in_environment(monkeypatch, s3_proxy.environment())
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 1.0)
    return SnapshotStore(f"s3://{bucket}/a/prefix")


@pytest.fixture(params=["s3_server", pytest.param("versitygw_server", marks=pytest.mark.long)])
def any_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SnapshotStore:
    """A store in an empty bucket of each kind of server."""
    server: S3Server = request.getfixturevalue(request.param)
    in_environment(monkeypatch, server.environment())
    return SnapshotStore(f"s3://{server.create_bucket()}/a/prefix")


@pytest.mark.parametrize("size", [100, 300_000], ids=["small", "large"])
def test_files_of_packs_and_their_manifests_are_read_by_range(any_store: SnapshotStore, size: int) -> None:
    contents = {f"main/epochs/0000000001/t-0000{number}": os.urandom(size) for number in range(2)}
    pack = Pack.of(EpochKey("main", 1), 1, contents)
    any_store.write(pack.path, pack.beginning + b"{}")
    assert any_store.manifest_bytes(pack.path) == b"{}"
    for path, content in contents.items():
        digest, place = hashlib.sha256(content).hexdigest(), pack.places[path]
        file = FileReference(path=path, sha256=digest, bytes=size, rows=1, within=place)
        assert any_store.read_file(file, "main/1") == content
        assert any_store.read_ranges(file, [(5, 10), (size - 1, 1)], "main/1") == [content[5:15], content[-1:]]
    any_store.write(pack.path, pack.beginning)
    assert any_store.manifest_bytes(pack.path) == b"", "a pack without a manifest"


def test_written_files_are_read_back(any_store: SnapshotStore) -> None:
    content = bytes(range(256)) * 100_000  # uploaded in parts
    file = any_store.write_file("main/epochs/1/x=1 é.parquet", content, rows=3)
    copy: SnapshotStore = pickle.loads(pickle.dumps(any_store))
    assert copy == any_store and not copy.is_near
    assert copy.read_file(file, "main/1") == content
    with copy.open(file, "main/1") as source:
        source.seek(-5, os.SEEK_END)
        assert source.read() == content[-5:]
        source.seek(1_000_000)
        assert source.read(5) == content[1_000_000:1_000_005]
    ranges = [(0, 4), (5_000_000, 300), (len(content) - 1, 1), (7, 0)]
    assert copy.read_ranges(file, ranges, "main/1") == [content[offset : offset + size] for offset, size in ranges]
    any_store.write(file.path, b"")
    assert any_store.size(file.path) == 0 and any_store.read(file.path) == b""
    with pytest.raises(FileCorrupt, match=f"does not have the {len(content)} bytes"):
        copy.read_ranges(file, ranges, "main/1")


def test_parquet_is_read_in_parts(any_store: SnapshotStore) -> None:
    rows = pa.table({"k": range(200_000)})
    target = pa.BufferOutputStream()
    pq.write_table(rows, target, row_group_size=50_000)
    file = any_store.write_file("main/bases/a.parquet", target.getvalue(), rows.num_rows)
    with any_store.open(file, "main/1") as source:
        assert pq.ParquetFile(source).read_row_group(2).column("k").to_pylist() == list(range(100_000, 150_000))


def test_files_are_listed_and_deleted(any_store: SnapshotStore) -> None:
    assert any_store.list("main") == [] == any_store.list("")
    for path in ("main/b/2", "main/a/1", "other/3", "mainly/4"):
        any_store.write(path, b"xy")
    assert any_store.list("main") == ["main/a/1", "main/b/2"]
    assert any_store.list("") == ["main/a/1", "main/b/2", "mainly/4", "other/3"]
    entries = any_store.entries("main/a")
    assert [(entry.path, entry.bytes) for entry in entries] == [("main/a/1", 2)]
    assert entries[0].written_at is not None and entries[0].written_at.timestamp() == pytest.approx(time.time(), abs=60)
    any_store.delete("main/a/1")
    any_store.delete("main/a/1")
    any_store.remove_empty_folder("main/a")
    assert any_store.list("main") == ["main/b/2"]
    with pytest.raises(FileMissing, match="main/a/1, of main/1, is missing"):
        any_store.read("main/a/1", "main/1")
    with pytest.raises(FileMissing):
        any_store.size("main/a/1")


def test_files_of_another_process_are_listed_immediately(
    store: SnapshotStore, s3_server: SeaweedServer, bucket: str
) -> None:
    """A listing must not be remembered: another process adds files."""
    assert store.list("main") == []
    s3_server.store(bucket, "a/prefix").put("main/new", b"x")
    assert store.list("main") == ["main/new"] and store.read("main/new") == b"x"


def test_one_of_several_creators_wins(any_store: SnapshotStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: any_store.create("owner", b"%d" % number), range(8)))
    assert won.count(True) == 1
    assert any_store.read("owner") == b"%d" % won.index(True)
    assert any_store.create("owner", b"%d" % won.index(True))


class TestFaults:
    """Requests that fail once are repeated; a write whose outcome is unknown is not taken for a failure."""

    @pytest.mark.parametrize(
        "fault",
        [
            lambda proxy: proxy.refuse(503, times=3),
            lambda proxy: proxy.answer_500_after_write(times=2),
            lambda proxy: proxy.cut(times=2),
            lambda proxy: proxy.cut(times=2, moment="after"),
        ],
        ids=["slow-down", "500-after-write", "cut-before", "cut-after"],
    )
    def test_writes_are_repeated(
        self, store: SnapshotStore, s3_proxy: S3Proxy, fault: Callable[[S3Proxy], object]
    ) -> None:
        fault(s3_proxy)
        file = store.write_file("main/x", b"content", rows=1)
        fault(s3_proxy)
        assert store.create("main/y", b"content")
        s3_proxy.heal()
        assert store.read_file(file, "main/1") == b"content" == store.read("main/y")

    @pytest.mark.parametrize("moment", ["before", "middle", "after"])
    def test_reads_are_repeated(self, store: SnapshotStore, s3_proxy: S3Proxy, moment: str) -> None:
        content = os.urandom(3_000_000)
        file = store.write_file("main/x", content, rows=1)
        s3_proxy.cut(times=1, kinds=["GET"], moment=moment)  # type: ignore[arg-type]
        assert store.read_file(file, "main/1") == content

    def test_store_that_is_down_is_unavailable_and_works_again(self, store: SnapshotStore, s3_proxy: S3Proxy) -> None:
        file = store.write_file("main/x", b"content", rows=1)
        s3_proxy.down()
        for call in (
            lambda: store.read("main/x"),
            lambda: store.write("main/y", b""),
            lambda: store.list("main"),
            lambda: store.size("main/x"),
            lambda: store.delete("main/x"),
            store.probe,
        ):
            with pytest.raises(StoreUnavailable, match="is not available") as raised:
                call()
            assert not isinstance(raised.value, StoreRefuses)
        s3_proxy.up()
        store.probe()
        assert store.read_file(file, "main/1") == b"content"

    def test_store_that_stalls_is_unavailable(
        self, store: SnapshotStore, s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.write("main/x", b"content")
        monkeypatch.setattr(object_store, "_STALLED_SECONDS", 0.5)
        monkeypatch.setattr(object_store, "_kept", {})
        s3_proxy.hold()
        with pytest.raises(StoreUnavailable, match="is not available"):
            store.read("main/x")
        s3_proxy.release()
        assert store.read("main/x") == b"content"


class TestRefusals:
    """Mistakes in credentials and settings are named, without the keys."""

    def refusal(self, url: str) -> str:
        with pytest.raises(StoreRefuses) as refused:
            SnapshotStore(url).write("main/x", b"content")
        with pytest.raises(EnvironmentProblem) as unusable:
            check_writable(SnapshotStore(url))
        assert refused.value.message.partition(": ")[2].rstrip(".") in unusable.value.message
        secrets = (os.environ.get("AWS_SECRET_ACCESS_KEY", "-"), os.environ.get("AWS_SESSION_TOKEN", "-"))
        assert not any(len(secret) > 1 and secret in refused.value.message for secret in secrets)
        return refused.value.message

    def test_missing_bucket(self, store: SnapshotStore) -> None:
        assert "NoSuchBucket" in (found := self.refusal("s3://no-such-bucket/x"))
        assert "Create the bucket" in found

    def test_wrong_keys(self, s3_server: SeaweedServer, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        in_environment(monkeypatch, s3_server.unknown_user_environment())
        assert "AWS_ACCESS_KEY_ID" in self.refusal(f"s3://{bucket}/x")
        in_environment(monkeypatch, s3_server.wrong_secret_environment())
        assert "AWS_SECRET_ACCESS_KEY" in self.refusal(f"s3://{bucket}/x")

    def test_credentials_without_the_right_to_write(
        self, s3_server: SeaweedServer, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = SnapshotStore(f"s3://{bucket}/x")
        in_environment(monkeypatch, s3_server.environment())
        full.write("main/y", b"content")
        in_environment(monkeypatch, s3_server.read_only_environment())
        assert "Grant the credentials read, write, list and delete" in self.refusal(f"s3://{bucket}/x")
        assert SnapshotStore(f"s3://{bucket}/x").read("main/y") == b"content"

    @pytest.mark.parametrize(
        ("status", "code", "remedy"),
        [
            (403, "RequestTimeTooSkewed", "Set the clock of this machine"),
            (400, "ExpiredToken", "Renew the session token"),
            (400, "AuthorizationHeaderMalformed", "Set AWS_REGION to the bucket's region"),
            (301, "PermanentRedirect", "Set AWS_REGION to the bucket's region"),
            (501, "NotImplemented", "conditional writes"),
        ],
    )
    def test_other_refusals(self, store: SnapshotStore, s3_proxy: S3Proxy, status: int, code: str, remedy: str) -> None:
        s3_proxy.refuse(status, code=code)
        assert remedy in self.refusal(store.url)

    def test_store_without_conditional_writes(self, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch) -> None:
        check_writable(store)
        monkeypatch.setattr(ObjectStoreFiles, "create", ObjectStoreFiles.write)
        with pytest.raises(EnvironmentProblem, match="does not support conditional writes"):
            check_writable(store)
        assert store.list("") == []

    def test_profile(self, s3_proxy: S3Proxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        variables = s3_proxy.environment()
        keys = {name: variables.pop(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        in_environment(monkeypatch, variables)
        credentials = tmp_path / "credentials"
        lines = "".join(f"{name.lower()} = {value}\n" for name, value in keys.items())
        credentials.write_text(f"[stream]\n{lines}")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_PROFILE", "stream")
        SnapshotStore(f"s3://{bucket}/x").write("main/y", b"content")
        monkeypatch.setattr(object_store, "_kept", {})
        monkeypatch.setenv("AWS_PROFILE", "other")
        with pytest.raises(StoreRefuses, match="the profile other has no aws_access_key_id"):
            SnapshotStore(f"s3://{bucket}/x").write("main/y", b"content")

    def test_keys_by_reference_are_read_again(
        self, s3_server: SeaweedServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_credentials, "_KEPT", timedelta(0))
        files = _keys_in_files(s3_server.environment(), tmp_path)
        in_environment(monkeypatch, files)
        store = SnapshotStore(f"s3://{bucket}/x")
        store.write("main/y", b"content")
        _keys_in_files(s3_server.read_only_environment(), tmp_path)
        time.sleep(0.2)  # the library asks for keys at most ten times a second
        with pytest.raises(StoreRefuses, match="Grant the credentials"):
            store.write("main/z", b"content")
        assert store.read("main/y") == b"content"
        (tmp_path / "AWS_SECRET_ACCESS_KEY").unlink()
        named = "AWS_SECRET_ACCESS_KEY: Secret file:.* cannot be read: No such file"
        assert re.search(named, self.refusal(f"s3://{bucket}/other"))

    def test_variables_by_reference(
        self, s3_server: SeaweedServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        region = tmp_path / "region"
        region.write_text("eu-north-1\n")
        in_environment(monkeypatch, s3_server.environment() | {"AWS_REGION": f"secret(file:{region})"})
        SnapshotStore(f"s3://{bucket}/x").write("main/y", b"content")
        region.unlink()
        assert "AWS_REGION: Secret file:" in self.refusal(f"s3://{bucket}/other")


def _keys_in_files(variables: dict[str, str], folder: Path) -> dict[str, str]:
    """The variables, with the values of the keys in files."""
    keys = [name for name in variables if name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    for name in keys:
        (folder / name).write_text(f"{variables[name]}\n")
    return variables | {name: f"secret(file:{folder / name})" for name in keys}


def _write_input(folder: Path, number: int) -> dict[str, int]:
    """Write a file of ten rows. Returns its totals by key."""
    folder.mkdir(exist_ok=True)
    rows = [{"k": f"k{row % 3}", "v": number * 10 + row} for row in range(10)]
    part = folder / f".{number}.json"
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(part, (number, number))
    part.rename(folder / f"{number}.json")
    totals: dict[str, int] = {}
    for row in rows:
        totals[str(row["k"])] = totals.get(str(row["k"]), 0) + int(str(row["v"]))
    return totals


@pytest.fixture
def spark_with_variables(spark: SparkSession, s3_proxy: S3Proxy) -> Iterator[SparkSession]:
    """Spark, whose Python workers reach the server through the proxy."""
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update(s3_proxy.environment())
    yield spark
    environment.clear()
    environment.update(before)


WAITING = "waiting for the store since"


class Application:
    """An aggregate over files, with its snapshots in an object store and its catalog in a file."""

    def __init__(self, store: SnapshotStore, spark: SparkSession, folder: Path, location: str | None = None) -> None:
        """``location``: of the files that are read; a folder by default."""
        self.store = store
        self.spark = spark
        self.folder = folder
        self.catalog_url = f"sqlite:///{folder}/catalog.sqlite"
        pipeline = Pipeline("totals")
        source = files.source(location or str(folder / "in"), format="json", schema="k string, v int", max_files=1)
        totals = pipeline.read("events", source).key_by("k").aggregate("totals", total="sum(v)")
        totals.write("out", files.sink(str(folder / "out"), format="json", mode="updates"))
        self.graph = pipeline.graph()
        self.statuses: list[str] = []
        self.on_wait: Callable[[], None] = lambda: None
        """Called at the first status of a wait for the store."""

    def run(
        self,
        epochs: int,
        backend: str = "heap",
        on_epoch: Callable[[Manifest], None] = lambda _: None,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """One attempt; a failed epoch fails it."""
        catalog = standalone_catalog(self.catalog_url, "totals", "0" * 64)
        heartbeat = catalog.heartbeat

        def noted_heartbeat(status: DriverStatus) -> Sequence[Directive]:
            if WAITING in str(status.detail) and not self.has_waited():
                self.on_wait()
            self.statuses.append(str(status.detail))
            return heartbeat(status)

        catalog.heartbeat = noted_heartbeat  # type: ignore[method-assign]
        catalog.begin_attempt()
        orders = ExecutionOrders(
            application="totals",
            execution=catalog.execution,
            attempt=catalog.attempt,
            artifact="0" * 64,
            configuration=Configuration(
                epoch_interval_seconds=0, parallelism=2, state_backend=backend, tolerable_failed_epochs=0
            ),
            store=self.store.url,
            cache_directory=str(self.folder / backend),
        )
        manifests: list[Manifest] = []

        def noted(manifest: Manifest) -> None:
            manifests.append(manifest)
            on_epoch(manifest)

        run(orders, self.graph, self.spark, catalog, Hooks(noted, stop_requested, epochs))
        if not manifests:
            return
        record = catalog.epoch(manifests[-1].epoch)
        assert record is not None and record.state == "committed" and record.manifest is not None
        self.head = record.manifest

    def has_waited(self) -> bool:
        return any(WAITING in status for status in self.statuses)

    def totals(self) -> dict[str, int]:
        return {row["k"]: row["total"] for row in SnapshotReader(self.store, self.head).read("totals").to_pylist()}


def test_application_keeps_its_state_in_an_object_store_and_waits_for_it(
    store: SnapshotStore, s3_proxy: S3Proxy, spark_with_variables: SparkSession, tmp_path: Path
) -> None:
    """The store refuses every write for a while: no epoch counts as failed, and no row is lost or counted twice."""
    expected: dict[str, int] = {}
    for number in range(1, 7):
        for key, total in _write_input(tmp_path / "in", number).items():
            expected[key] = expected.get(key, 0) + total
    application = Application(store, spark_with_variables, tmp_path)
    # An outage lasts until it has been noticed, on slow machines too.
    application.on_wait = lambda: threading.Timer(2.0, s3_proxy.heal).start()

    def outage(manifest: Manifest) -> None:
        if manifest.epoch == 1:
            s3_proxy.refuse(403, code="AccessDenied", kinds=["PUT"])

    application.run(3, on_epoch=outage)
    assert application.has_waited()
    s3_proxy.refuse(403, code="AccessDenied")
    application.statuses.clear()
    application.statuses.clear()
    application.run(3, stop_requested=lambda: any("waiting" in status for status in application.statuses))
    application.run(3, "lmdb")  # restored from the store, after waiting for it
    assert application.has_waited()
    assert application.totals() == expected


@pytest.mark.long
def test_application_waits_for_a_server_that_is_down(
    store: SnapshotStore, s3_proxy: S3Proxy, spark_with_variables: SparkSession, tmp_path: Path
) -> None:
    """Connections are refused for longer than tasks repeat their requests, and the files to read are on the same
    server."""
    expected: dict[str, int] = {}
    for number in range(1, 4):
        for key, total in _write_input(tmp_path / "in", number).items():
            expected[key] = expected.get(key, 0) + total
        store.write(f"input/{number}.json", (tmp_path / "in" / f"{number}.json").read_bytes())
    application = Application(store, spark_with_variables, tmp_path, f"{store.url}/input")

    def outage(manifest: Manifest) -> None:
        if manifest.epoch == 1:
            s3_proxy.down()
            threading.Timer(45.0, s3_proxy.up).start()

    application.run(3, on_epoch=outage)
    assert any("waiting for source 'events' since" in status for status in application.statuses)
    assert application.totals() == expected
