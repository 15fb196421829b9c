"""The files sink satisfies the sink contract on a real S3 server, also when answers are lost and requests land late."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import obstore
import pyarrow as pa
import pytest

import epochal.backends.object_files
from epochal.backends.object_files import address
from epochal.backends.object_files.lists import EpochList
from epochal.background.task import BackgroundTask
from epochal.connectors import files
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.contracts.source import SliceLimits
from epochal.errors import EpochalError, OutcomeUnknown, SinkError
from epochal.faults import FaultPoint, injected
from epochal.testing.contract import (
    DegradedSinkHarness,
    Losses,
    LostAnswers,
    SinkBackendContract,
    SinkHarness,
    StepAnswers,
)
from epochal.testing.lost_answers import Loss
from epochal.testing.servers.s3 import SeaweedServer
from epochal.testing.servers.s3_proxy import Fault, S3Proxy
from epochal.testing.servers.s3_proxy import s3_proxy as new_proxy
from epochal.testing.sink_contract import SCHEMA, epoch, pre_commit, rows, same
from tests.servers.contract.s3_folder import ObjectFolder
from tests.service.fault.points import points_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server, pytest.mark.slow]
STEPS = ["R1.objects.claimed", *(name for name in points_of(epochal.backends.object_files) if name.startswith("E5"))]
"""test_sinks_after_rollback.py crashes at the others."""


@pytest.fixture
def folder(s3_server: SeaweedServer, tmp_path: Path) -> ObjectFolder:
    return ObjectFolder(s3_server, tmp_path)


@pytest.fixture
def proxied(s3_server: SeaweedServer, s3_proxy: S3Proxy, tmp_path: Path) -> ObjectFolder:
    """A folder whose sink reaches the server through the proxy."""
    return ObjectFolder(s3_server, tmp_path, endpoint=s3_proxy.endpoint)


@pytest.mark.parametrize(
    # test_files_sink covers the formats, whose code does not depend on the file system.
    "format",
    ["parquet", *(pytest.param(format, marks=pytest.mark.long) for format in ("json", "csv"))],
)
class TestObjectSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, s3_server: SeaweedServer, tmp_path: Path, format: str) -> SinkHarness:
        return ObjectFolder(s3_server, tmp_path, format)


class S3Answers(LostAnswers):
    """A proxy that answers 500 after the server has performed a request."""

    def __init__(self, proxy: S3Proxy) -> None:
        self._proxy = proxy

    @contextmanager
    def losing(self, number: int) -> Iterator[Loss]:
        if number > 1:  # a fault without effect takes the requests before
            self._proxy._add(Fault("delay", None, "", times=number - 1))
        fault = self._proxy.answer_500_after_write(times=1, kinds=None)
        try:
            yield Loss(fault.met)
        finally:
            self._proxy.heal()


@pytest.fixture(scope="module")
def module_proxy(s3_server: SeaweedServer) -> Iterator[S3Proxy]:
    with new_proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def losses(module_proxy: S3Proxy) -> dict[str, Losses]:
    by_name = {"steps": StepAnswers(), "repeated": S3Answers(module_proxy), "failed": S3Answers(module_proxy)}
    return {name: Losses(answers) for name, answers in by_name.items()}


@pytest.mark.parametrize("lost", ["steps", "repeated", "failed"])
class TestObjectSinkDegraded(SinkBackendContract):
    """Each step, or each answer of the server, is lost once; each call is repeated from another process. The client
    repeats a request (``repeated``), or the call fails (``failed``)."""

    @pytest.fixture
    def harness(
        self,
        s3_server: SeaweedServer,
        module_proxy: S3Proxy,
        losses: dict[str, Losses],
        tmp_path: Path,
        lost: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> SinkHarness:
        if lost == "failed":
            monkeypatch.setattr(address, "PATIENCE_SECONDS", 0.0)
        return DegradedSinkHarness(ObjectFolder(s3_server, tmp_path, endpoint=module_proxy.endpoint), losses[lost])


class Crash(BaseException):
    """Simulated death of the process."""


@pytest.mark.parametrize("step", STEPS)
def test_next_attempt_recovers_from_a_crash_at_any_step(folder: ObjectFolder, step: str) -> None:
    first = folder.make()
    first.recover(epoch(0, parent=0))
    first.commit(epoch(1), [pre_commit(first, epoch(1), rows(1))])
    handles = [pre_commit(first, epoch(2), rows(subtask + 2), subtask) for subtask in range(2)]
    crashed = False

    def crash(point: FaultPoint, _epoch: int | None) -> None:
        nonlocal crashed
        if point.name == step and not crashed:
            crashed = True
            raise Crash

    dying = folder.make()
    with injected(crash), suppress(Crash):
        dying.recover(epoch(2, attempt=2))
        dying.commit(epoch(2, attempt=2), handles)
    assert crashed
    assert any(same(folder.visible(), rows(*ids)) for ids in ((1,), (1, 2, 3)))
    successor = folder.make()
    successor.recover(epoch(2, attempt=3))
    successor.commit(epoch(2, attempt=3), handles)
    successor.sweep(epoch(2, attempt=3), handles)
    assert same(folder.visible(), rows(1, 2, 3))
    assert folder.leftovers() == []


def test_late_list_of_a_dead_driver_changes_nothing(proxied: ObjectFolder, s3_proxy: S3Proxy) -> None:
    """Its successor commits the epoch first."""
    dead = proxied.make()
    dead.recover(epoch(0, parent=0))
    handles = [pre_commit(dead, epoch(1), rows(1))]
    s3_proxy.hold(times=1, kinds=["PUT"], containing="_epochs/")
    commit = BackgroundTask("dead-driver", lambda: dead.commit(epoch(1), handles))
    s3_proxy.wait_for_held()
    successor = proxied.make()
    successor.recover(epoch(1, attempt=2))
    successor.commit(epoch(1, attempt=2), handles)
    before = proxied.lists()
    (late,) = s3_proxy.release()
    commit.wait()
    assert (late.server_status, proxied.lists()) == (412, before)
    assert same(proxied.visible(), rows(1))


def test_late_list_of_an_epoch_that_was_given_up_changes_nothing(proxied: ObjectFolder, s3_proxy: S3Proxy) -> None:
    dead = proxied.make()
    dead.recover(epoch(0, parent=0))
    handles = [pre_commit(dead, epoch(1), rows(1))]
    s3_proxy.hold(times=1, kinds=["PUT"], containing="_epochs/")
    commit = BackgroundTask("dead-driver", lambda: _ignoring(lambda: dead.commit(epoch(1), handles)))
    s3_proxy.wait_for_held()
    successor = proxied.make()
    successor.recover(epoch(1, attempt=2))
    successor.commit(epoch(1, attempt=2), ())  # as the engine gives an epoch up
    successor.abort(epoch(1, attempt=2), handles)
    (late,) = s3_proxy.release()
    commit.wait()
    assert late.server_status == 412
    assert (proxied.visible(), proxied.leftovers()) == ([], [])


def test_epoch_that_was_committed_before_it_is_given_up_stays(folder: ObjectFolder) -> None:
    backend = folder.make()
    backend.recover(epoch(0, parent=0))
    handles = [pre_commit(backend, epoch(1), rows(1))]
    backend.commit(epoch(1), handles)
    backend.commit(epoch(1, attempt=2), ())
    backend.abort(epoch(1, attempt=2), handles)
    backend.sweep(epoch(1, attempt=2), ())
    assert same(folder.visible(), rows(1))


def test_late_data_of_a_dead_task_is_never_visible(proxied: ObjectFolder, s3_proxy: S3Proxy) -> None:
    backend = proxied.make()
    backend.recover(epoch(0, parent=0))
    s3_proxy.hold(times=1, kinds=["PUT"], containing="_data/")
    task = BackgroundTask("dead-task", lambda: _ignoring(lambda: pre_commit(backend, epoch(1), rows(9))))
    s3_proxy.wait_for_held()
    handles = [pre_commit(backend, epoch(1), rows(1))]
    backend.sweep(epoch(1), handles)
    backend.commit(epoch(1), handles)
    s3_proxy.release()
    task.wait()
    assert same(proxied.visible(), rows(1))
    assert backend.sweep(epoch(1), handles) == 1
    assert proxied.leftovers() == []


def _ignoring(call: Callable[[], object]) -> None:
    with suppress(EpochalError):
        call()


def test_commit_whose_answers_are_lost_is_repeated(
    proxied: ObjectFolder, s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "PATIENCE_SECONDS", 0.0)
    backend = proxied.make()
    backend.recover(epoch(0, parent=0))
    handles = [pre_commit(backend, epoch(1), rows(1))]
    s3_proxy.answer_500_after_write(times=1, containing="_epochs/")
    with pytest.raises(OutcomeUnknown, match="could not commit epoch 1: "):
        backend.commit(epoch(1), handles)
    proxied.make().commit(epoch(1), handles)
    assert same(proxied.visible(), rows(1))


def test_requests_of_an_epoch(proxied: ObjectFolder, s3_proxy: S3Proxy) -> None:
    """An upload per task; a listing and a list per epoch. Tasks without rows make no request."""
    backend = proxied.make()
    backend.recover(epoch(0, parent=0))
    mark = s3_proxy.mark()
    handles = [pre_commit(backend, epoch(1), rows(*range(subtask)), subtask) for subtask in range(3)]
    assert s3_proxy.counts(mark) == {"PUT": 2}
    mark = s3_proxy.mark()
    backend.commit(epoch(1), handles)
    assert s3_proxy.counts(mark) == {"LIST": 1, "PUT": 1}
    mark = s3_proxy.mark()
    backend.sweep(epoch(1), handles)
    assert s3_proxy.counts(mark) == {"LIST": 1}
    mark = s3_proxy.mark()
    backend.commit(epoch(2), [pre_commit(backend, epoch(2), [])])
    assert s3_proxy.counts(mark) == {}


def test_large_files_are_uploaded_in_parts(folder: ObjectFolder) -> None:
    backend = folder.make()
    backend.recover(epoch(0, parent=0))
    transaction = backend.start(TaskScope(epoch(1), "out", 0))
    names = [secrets.token_hex(500_000) for _ in range(4)]
    for number in range(10):
        table = {"id": range(number * 4, number * 4 + 4), "name": names}
        transaction.write(pa.RecordBatch.from_pydict(table, SCHEMA))
    backend.commit(epoch(1), [transaction.pre_commit()])
    assert [(row["id"], row["name"]) for row in folder.visible()] == [(n, names[n % 4]) for n in range(40)]


def test_lost_and_changed_objects_fail_the_commit_and_hide_the_epoch(folder: ObjectFolder) -> None:
    backend = folder.make()
    backend.recover(epoch(0, parent=0))
    handles = [pre_commit(backend, epoch(1), rows(subtask), subtask) for subtask in range(2)]
    path = handles[1].payload["path"]
    data = bytes(obstore.get(folder.store, path).bytes())
    for damage in (lambda: obstore.delete(folder.store, path), lambda: obstore.put(folder.store, path, data[::-1])):
        damage()
        with pytest.raises(SinkError, match=r"has lost .*, a part of epoch 1: .* Restore it from a copy"):
            backend.commit(epoch(1), handles)
        assert folder.visible() == []
    obstore.put(folder.store, path, data, chunk_size=5 << 20, use_multipart=True)  # a copy has another version
    backend.commit(epoch(1), handles)
    assert same(folder.visible(), rows(0, 1))


def test_a_folder_has_one_owner(folder: ObjectFolder, tmp_path: Path) -> None:
    folder.make().recover(epoch(0, parent=0))
    folder.make().recover(epoch(0, parent=0, attempt=2))
    foreign = EpochScope("other", EpochKey("main", 0), 1, None)
    with pytest.raises(SinkError, match="belongs to application 'application'"):
        folder.make().recover(foreign)
    other = ObjectFolder(folder.server, tmp_path)
    obstore.put(other.store, "data.csv", b"x")
    with pytest.raises(SinkError, match=r"already holds other files \(data.csv\)"):
        other.make().recover(epoch(0, parent=0))


def test_foreign_list_is_detected(folder: ObjectFolder) -> None:
    backend = folder.make()
    backend.recover(epoch(0, parent=0))
    handles = [pre_commit(backend, epoch(1), rows(1))]
    for content, message in ((b"nonsense", "is not a list of a files sink"), (None, "does not name exactly")):
        obstore.put(folder.store, "_epochs/0000000001.json", content or EpochList(1, ()).encode())
        with pytest.raises(SinkError, match=message):
            backend.commit(epoch(1), handles)


def test_refused_writes_are_reported(s3_server: SeaweedServer, tmp_path: Path) -> None:
    folder = ObjectFolder(s3_server, tmp_path)
    variables = s3_server.read_only_environment()
    (tmp_path / "key").write_text(variables["AWS_ACCESS_KEY_ID"])
    (tmp_path / "secret").write_text(variables["AWS_SECRET_ACCESS_KEY"])
    with pytest.raises(SinkError, match=r"could not take over: AccessDenied.*Grant the credentials"):
        folder.make().recover(epoch(0, parent=0))


def test_committed_files_are_read_by_spark_duckdb_and_the_source(
    spark: SparkSession, s3_server: SeaweedServer, tmp_path: Path
) -> None:
    """The statements of docs/reference/sources-and-sinks.md. Uncommitted files are not read."""
    folder = ObjectFolder(s3_server, tmp_path, "parquet")
    backend = folder.make()
    backend.recover(epoch(0, parent=0))
    for number in (1, 2):
        backend.commit(epoch(number), [pre_commit(backend, epoch(number), rows(number))])
    source = files.source(folder.url, schema="id bigint, epoch int", **folder.options).make()
    slice = source.plan(SliceLimits(None))
    assert slice is not None
    source.accept(slice)
    handles = [pre_commit(backend, epoch(3), rows(3))]
    assert source.plan(SliceLimits(None)) is None
    assert sorted(map(tuple, source.read(spark, slice).collect())) == [(1, 1), (2, 2)]

    copy = tmp_path / "copy"
    for path in folder.objects():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes(bytes(obstore.get(folder.store, path).bytes()))
    listed = [each.replace(folder.url, str(copy)) for each in files.committed_files(folder.url, **folder.options)]
    frame = spark.read.option("basePath", f"{copy}/_data").parquet(*listed)
    assert sorted((row.id, row.epoch) for row in frame.collect()) == [(1, 1), (2, 2)]
    with duckdb.connect() as database:
        database.execute(
            f"SET VARIABLE files = (SELECT list('{copy}/' || file.path) FROM "
            f"(SELECT unnest(files) AS file FROM read_json('{copy}/_epochs/*.json', columns = "
            "{files: 'STRUCT(path VARCHAR)[]'})))"
        )
        found = database.execute(
            "SELECT id, epoch FROM read_parquet(getvariable('files'), hive_types = {'epoch': BIGINT})"
        )
        assert sorted(found.fetchall()) == [(1, 1), (2, 2)]

    backend.commit(epoch(3), handles)
    slice = source.plan(SliceLimits(None))
    assert slice is not None
    assert [tuple(row) for row in source.read(spark, slice).collect()] == [(3, 3)]
