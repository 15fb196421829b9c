"""The HDFS sink under faults: crashes at each step, concurrent drivers, truncated uploads, NameNode failures.

Runs in this process on a real NameNode and DataNode. Whole drivers are killed in ``tests/servers/fault/test_hdfs.py``.
"""

from __future__ import annotations

import gc
import random
import signal
from contextlib import suppress

import pyarrow as pa
import pytest

from epochal.backends.hdfs.client import WebHdfs
from epochal.backends.hdfs.sink import HdfsBackend
from epochal.backends.hdfs.transaction import PIECE_BYTES
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import OutcomeUnknown, SinkError, SinkUnavailable, StorageFull
from epochal.faults import FaultPoint, declared, injected
from epochal.testing.servers.hdfs import HdfsServer
from tests.servers.contract.hdfs_folder import DegradedHdfs, HdfsFolder, clients_losing_each_answer

pytestmark = [pytest.mark.server, pytest.mark.slow]

STEPS = [name for name in declared() if name.startswith("E5.hdfs.")]


class Crash(BaseException):
    """A crash of the process; a BaseException, so that no error handling of the code runs."""


def scope(number: int, attempt: int = 1, branch: str = "main", application: str = "delays") -> EpochScope:
    return EpochScope(application, EpochKey(branch, number), attempt, None)


def write(backend: HdfsBackend, number: int, *texts: str, subtask: int = 0) -> Handle:
    transaction = backend.start(TaskScope(scope(number), "out", subtask))
    transaction.write(pa.RecordBatch.from_pydict({"text": list(texts)}))
    return transaction.pre_commit()


def shown(folder: HdfsFolder) -> dict[str, list[object]]:
    return {name: sorted(row["text"] for row in rows) for name, rows in folder.visible_folders().items()}  # type: ignore[type-var]


@pytest.fixture
def folder(hdfs_server: HdfsServer) -> HdfsFolder:
    return HdfsFolder(hdfs_server)


@pytest.fixture
def backend(folder: HdfsFolder) -> HdfsBackend:
    backend = folder.make()
    backend.recover(scope(0))
    return backend


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("times", [1, 2])
def test_crash_at_any_step_of_the_commit_is_atomic(
    folder: HdfsFolder, backend: HdfsBackend, step: str, times: int
) -> None:
    backend.commit(scope(1), [write(backend, 1, "before")])
    handles = [write(backend, 2, f"{subtask}", subtask=subtask) for subtask in range(2)]
    before = {"epoch=0000000001": ["before"]}
    after = {**before, "epoch=0000000002": ["0", "1"]}
    hits = 0

    def crash(point: FaultPoint, epoch: int | None) -> None:
        nonlocal hits
        hits += point.name == step
        if point.name == step and hits == times:
            raise Crash

    with injected(crash), suppress(Crash):
        folder.make().commit(scope(2), handles)
    assert shown(folder) in (before, after)
    successor = folder.make()
    successor.recover(scope(2, attempt=2))
    successor.commit(scope(2, attempt=2), handles)
    successor.sweep(scope(2, attempt=2), handles)
    assert shown(folder) == after
    assert folder.leftovers() == []


@pytest.mark.parametrize("step", STEPS)
def test_concurrent_commits_of_an_epoch_take_effect_once(folder: HdfsFolder, backend: HdfsBackend, step: str) -> None:
    handles = [write(backend, 2, f"{subtask}", subtask=subtask) for subtask in range(2)]
    overtaken = False

    def overtake(point: FaultPoint, epoch: int | None) -> None:
        nonlocal overtaken
        if point.name == step and not overtaken:
            overtaken = True
            folder.make().commit(scope(2, attempt=2), handles)

    with injected(overtake):
        backend.commit(scope(2), handles)
    backend.sweep(scope(2), handles)
    assert overtaken
    assert shown(folder) == {"epoch=0000000002": ["0", "1"]}
    assert folder.leftovers() == []


def test_lost_answers_of_an_upload_leave_no_files(folder: HdfsFolder, backend: HdfsBackend) -> None:
    """The task fails or succeeds; its files are swept and never counted twice."""
    tries = 0
    for tries, hdfs in enumerate(clients_losing_each_answer(folder.address()), start=1):
        with suppress(SinkUnavailable):
            backend.abort(scope(tries), [write(folder.make(hdfs), tries, "x")])
        backend.sweep(scope(tries), [])
        assert folder.leftovers() == []
    assert tries == 4  # redirect, upload, status, and one client without a loss
    assert shown(folder) == {}


def test_lost_answers_of_a_take_over_are_tolerated(folder: HdfsFolder) -> None:
    tries = 0
    for hdfs in clients_losing_each_answer(folder.address()):
        with suppress(SinkUnavailable):
            folder.make(hdfs).recover(scope(0))
        tries += 1
    folder.make().recover(scope(0, attempt=2))
    assert tries > 6
    assert [name for name in folder.client.list(folder.path) if name.startswith("_epochal")] == ["_epochal.json"]


def test_large_file_is_streamed_and_verified(folder: HdfsFolder, backend: HdfsBackend) -> None:
    text = "x" * 1000
    transaction = backend.start(TaskScope(scope(1), "out", 0))
    for _ in range(10):
        transaction.write(pa.RecordBatch.from_pydict({"text": [text] * 1000}))
    handle = transaction.pre_commit()
    assert handle.bytes > 2 * PIECE_BYTES
    backend.commit(scope(1), [handle])
    assert len(shown(folder)["epoch=0000000001"]) == 10_000


@pytest.mark.parametrize("format", ["json", "parquet"])
@pytest.mark.alternating(2)
def test_discarded_large_file_is_deleted(hdfs_server: HdfsServer, format: str) -> None:
    """Also after a failed request, and when the format's writer closes its file later."""
    folder = HdfsFolder(hdfs_server, format)
    chance = random.Random(7)
    rows = pa.RecordBatch.from_pydict({"text": [chance.randbytes(500).hex() for _ in range(20_000)]})
    for number, hdfs in enumerate((WebHdfs(folder.address()), DegradedHdfs(folder.address(), lost_answer=2)), start=1):
        discarded = folder.make(hdfs).start(TaskScope(scope(number), "out", 0))
        with suppress(SinkUnavailable):
            for _ in range(8):
                discarded.write(rows)
        discarded.discard()
        del discarded
        gc.collect()
        assert folder.leftovers() == []


def test_truncated_upload_is_detected(folder: HdfsFolder, backend: HdfsBackend) -> None:
    """A DataNode that loses its client closes the file, which then looks complete but is too short."""

    def cut(point: FaultPoint, epoch: int | None) -> None:
        (path,) = folder.leftovers()
        folder.client.write(path, data=b"{", overwrite=True)

    with injected(cut), pytest.raises(SinkError, match=r"20 bytes were sent, and it has 1\. The upload was cut short"):
        write(backend, 1, "12345678")


def test_lost_file_blocks_the_commit_until_it_is_restored(folder: HdfsFolder, backend: HdfsBackend) -> None:
    handles = [write(backend, 1, "a", subtask=0), write(backend, 1, "b", subtask=1)]
    path = f"{folder.path}/_staging/main/{handles[1].payload['staged']}"
    with folder.client.read(path) as file:
        copy = file.read()
    for wrong in (None, b"{", copy.replace(b"b", b"c")):
        folder.client.delete(path)
        if wrong is not None:
            folder.client.write(path, data=wrong)
        with pytest.raises(SinkError, match=rf"has lost {path}.*Restore it from a copy"):
            backend.commit(scope(1), handles)
        assert shown(folder) == {}
    folder.client.delete(path)
    folder.client.write(path, data=copy)
    backend.commit(scope(1), handles)
    backend.commit(scope(1), handles)
    assert shown(folder) == {"epoch=0000000001": ["a", "b"]}


def test_foreign_files_are_detected(folder: HdfsFolder, backend: HdfsBackend) -> None:
    handle = write(backend, 1, "a")
    folder.client.write(f"{folder.path}/_staging/main/e0000000001/foreign", data=b"x")
    with pytest.raises(SinkError, match=r"e0000000001 holds files that are not of epoch 1"):
        backend.commit(scope(1), [handle])
    folder.client.delete(f"{folder.path}/_staging/main/e0000000001/foreign")
    backend.commit(scope(1), [handle])
    final = f"{folder.path}/epoch=0000000001"
    folder.client.write(f"{final}/foreign", data=b"x")
    with pytest.raises(SinkError, match="foreign is missing, unexpected or changed"):
        backend.commit(scope(1), [handle])
    folder.client.delete(f"{final}/foreign")
    folder.client.write(f"{final}/{handle.payload['final']}", data=b"y" * handle.bytes, overwrite=True)
    with pytest.raises(SinkError, match="is missing, unexpected or changed"):
        backend.commit(scope(1), [handle])


def test_epoch_aborted_during_its_commit_leaves_no_files(folder: HdfsFolder, backend: HdfsBackend) -> None:
    handles = [write(backend, 1, "a", subtask=0), write(backend, 1, "b", subtask=1)]

    def crash(point: FaultPoint, epoch: int | None) -> None:
        if point.name == "E5.hdfs.gathered-one":
            raise Crash

    with injected(crash), suppress(Crash):
        backend.commit(scope(1), handles)
    backend.commit(scope(1), [])
    backend.abort(scope(1), handles)
    backend.sweep(scope(1), [])
    assert (shown(folder), folder.leftovers()) == ({}, [])


def test_folder_of_another_owner_is_refused(hdfs_server: HdfsServer, folder: HdfsFolder, backend: HdfsBackend) -> None:
    folder.make().recover(scope(0, attempt=2))
    with pytest.raises(SinkError, match=r"belongs to application 'delays', branch main\. Name another folder"):
        folder.make().recover(scope(0, application="other"))
    with pytest.raises(SinkError, match=r"another run wrote it.*delete the folder; to keep it, choose another one"):
        folder.make().recover(scope(0, branch="second"))
    used = HdfsFolder(hdfs_server)
    used.client.write(f"{used.path}/data.csv", data=b"x")
    with pytest.raises(SinkError, match=r"already holds other files \(data.csv\)"):
        used.make().recover(scope(0))
    used.path = f"{used.path}/data.csv"
    with pytest.raises(SinkError, match=r"is a file\. Use a folder"):
        used.make().recover(scope(0))


def test_target_ahead_of_the_state_is_refused(folder: HdfsFolder, backend: HdfsBackend) -> None:
    backend.commit(scope(3), [write(backend, 3, "a")])
    folder.make().recover(scope(3, attempt=2))
    with pytest.raises(SinkError, match="already holds epoch 3, but the application's state is at epoch 2"):
        folder.make().recover(scope(2, attempt=3))


class TestReportedFailures:
    """Each error names the cause, the sink and the fix; after the fix no row is lost."""

    def test_missing_permission(self, hdfs_server: HdfsServer) -> None:
        folder = HdfsFolder(hdfs_server)
        alice = folder.make(WebHdfs(folder.address(user="alice")))
        with pytest.raises(SinkError, match=r"Sink 'out' \(hdfs:127.*Permission denied: user=alice.*Grant the user"):
            alice.recover(scope(0))
        folder.client.makedirs(folder.path)
        with pytest.raises(SinkError, match=r"Permission denied: user=alice"):
            alice.recover(scope(0))
        folder.client.set_owner(folder.path, "alice")
        alice.recover(scope(0))
        alice.commit(scope(1), [write(alice, 1, "a")])
        assert shown(folder) == {"epoch=0000000001": ["a"]}

    @pytest.mark.parametrize("limits", [{"names": 4}, {"bytes": 1024}])
    def test_exceeded_quota(
        self, hdfs_server: HdfsServer, folder: HdfsFolder, backend: HdfsBackend, limits: dict
    ) -> None:
        hdfs_server.set_quota(folder.path, **limits)
        with pytest.raises(StorageFull, match=r"could not write .*a quota is exceeded: The .*Raise it, or free some"):
            write(backend, 1, "a")
        hdfs_server.set_quota(folder.path, names=1000, bytes=2**30)
        backend.sweep(scope(1), [])
        backend.commit(scope(2), [write(backend, 2, "a")])
        assert shown(folder) == {"epoch=0000000002": ["a"]}

    def test_safe_mode(self, hdfs_server: HdfsServer, folder: HdfsFolder, backend: HdfsBackend) -> None:
        handle = write(backend, 1, "a")
        hdfs_server.enter_safe_mode()
        try:
            for attempted in (
                lambda: write(backend, 2, "b"),
                lambda: backend.commit(scope(1), [handle]),
                lambda: backend.abort(scope(3), [handle]),
            ):
                with pytest.raises(SinkUnavailable, match="the NameNode is in safe mode"):
                    attempted()
            folder.make().recover(scope(1, attempt=2))  # needs no change in HDFS
            with pytest.raises(SinkUnavailable, match="safe mode"):
                HdfsFolder.make(_unused_folder(folder)).recover(scope(0))
        finally:
            hdfs_server.leave_safe_mode()
        backend.commit(scope(1), [handle])
        assert shown(folder) == {"epoch=0000000001": ["a"]}

    def test_name_node_that_does_not_answer(
        self, hdfs_server: HdfsServer, folder: HdfsFolder, backend: HdfsBackend
    ) -> None:
        handle = write(backend, 1, "a")
        impatient = folder.make(WebHdfs(folder.address(timeout_seconds=0.3)))
        with hdfs_server.paused_name_node():
            with pytest.raises(OutcomeUnknown, match=r"could not commit epoch 1: 127.* does not answer in time"):
                impatient.commit(scope(1), [handle])
            with pytest.raises(SinkUnavailable, match="does not answer in time"):
                impatient.recover(scope(1))
        backend.commit(scope(1), [handle])
        assert shown(folder) == {"epoch=0000000001": ["a"]}

    @pytest.mark.alternating(3)
    def test_killed_and_restarted_name_node(
        self, hdfs_server: HdfsServer, folder: HdfsFolder, backend: HdfsBackend
    ) -> None:
        """Killed between pre-commit and commit, and during a commit; the same backend continues."""
        handles = [write(backend, 1, "a", subtask=0), write(backend, 1, "b", subtask=1)]
        stopped = False

        def stop(point: FaultPoint, epoch: int | None) -> None:
            nonlocal stopped
            if point.name == "E5.hdfs.gathered-one" and not stopped:
                stopped = True
                hdfs_server.stop_name_node(kill=True)

        with injected(stop), pytest.raises(OutcomeUnknown, match=r"cannot be reached \(Connection refused\)"):
            backend.commit(scope(1), handles)
        with pytest.raises(SinkUnavailable, match="Check that it is running and that url names it"):
            write(backend, 2, "c")
        hdfs_server.start_name_node()
        backend.commit(scope(1), handles)
        backend.sweep(scope(1), handles)
        assert (shown(folder), folder.leftovers()) == ({"epoch=0000000001": ["a", "b"]}, [])

    def test_paused_data_node(self, hdfs_server: HdfsServer, folder: HdfsFolder, backend: HdfsBackend) -> None:
        """The NameNode has not noticed the pause yet, so the upload times out."""
        impatient = folder.make(WebHdfs(folder.address(timeout_seconds=0.5)))
        hdfs_server.data_node.send(signal.SIGSTOP)
        try:
            with pytest.raises(SinkUnavailable, match=r"could not write .* does not answer in time"):
                write(impatient, 1, "a")
        finally:
            hdfs_server.data_node.send(signal.SIGCONT)

    def test_second_name_node_is_used_when_the_first_is_down(self, hdfs_server: HdfsServer, folder: HdfsFolder) -> None:
        """Every request fails over to the next NameNode."""
        listed = folder.make(WebHdfs(folder.address(url=f"http://127.0.0.1:1;{hdfs_server.url}")))
        listed.recover(scope(0))
        listed.commit(scope(1), [write(listed, 1, "a")])
        assert shown(folder) == {"epoch=0000000001": ["a"]}

    def test_addresses_that_are_not_web_hdfs(self, hdfs_server: HdfsServer, folder: HdfsFolder) -> None:
        """The NameNode's RPC port for Hadoop clients, and another page of its web server."""
        rpc = hdfs_server.rpc_address
        for url in (f"http://{rpc}", f"{hdfs_server.url}/conf"):
            with pytest.raises(SinkError, match=r"Set url to the NameNode's HTTP address|cannot be reached"):
                folder.make(WebHdfs(folder.address(url=url))).recover(scope(0))


def _unused_folder(folder: HdfsFolder) -> HdfsFolder:
    """A folder with another path that does not exist yet."""
    unused = HdfsFolder.__new__(HdfsFolder)
    unused.__dict__.update(folder.__dict__ | {"path": f"{folder.path}-unused"})
    return unused
