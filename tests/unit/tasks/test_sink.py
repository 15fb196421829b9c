"""The task of a sink, over the real files backend; and the fault points that sinks and operators share."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.engine.failures import failure_of
from epochal.errors import EpochAborted, SinkError, StorageFull
from epochal.faults import FaultPoint, Recorder, injected
from epochal.tasks.sink import SINK_RESULT, SinkTask

EPOCH = EpochScope("application", EpochKey("main", 7), 1, EpochKey("main", 6))
ROWS = [pa.record_batch({"n": pa.array([1, 2])}), pa.record_batch({"n": pa.array([3])})]


@dataclass
class MemoryTransaction(SinkTransaction):
    """Records its rows and its end."""

    task: TaskScope
    refuse: Exception | None
    rows: list[int] = field(default_factory=list)
    end: str = "open"

    def write(self, batch: pa.RecordBatch) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.rows += batch.column("n").to_pylist()

    def pre_commit(self) -> Handle:
        self.end = "pre-committed"
        return Handle(owner=self.task.owner, subtask=self.task.subtask, rows=len(self.rows), bytes=0, payload={})

    def discard(self) -> None:
        assert self.end == "open"
        self.end = "discarded"


@dataclass
class MemoryBackend(SinkBackend):
    """A third party's sink, in memory."""

    refuse: Exception | None = None
    started: list[MemoryTransaction] = field(default_factory=list)
    kind = "memory"
    target = "memory:"

    def start(self, task: TaskScope) -> MemoryTransaction:
        self.started.append(MemoryTransaction(task, self.refuse))
        return self.started[-1]

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None: ...
    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None: ...
    def recover(self, epoch: EpochScope) -> None: ...
    def check(self, schema: pa.Schema) -> None: ...
    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return 0


def run(backend: SinkBackend, batches: Sequence[pa.RecordBatch] = ROWS) -> list[pa.RecordBatch]:
    return list(SinkTask("out", backend, EPOCH)(iter(batches)))


@pytest.mark.parametrize("batches", [ROWS, []])
def test_a_sink_task_returns_one_row_with_the_handle(batches: list[pa.RecordBatch]) -> None:
    backend = MemoryBackend()
    (result,) = run(backend, batches)
    assert result.schema == SINK_RESULT
    (row,) = result.to_pylist()
    handle = Handle.decode(row.pop("handle"))
    assert row == {"sink": "out", "partition": 0}
    assert (handle.owner, handle.subtask, handle.rows) == ("out", 0, sum(batch.num_rows for batch in batches))
    assert [transaction.end for transaction in backend.started] == ["pre-committed"]


def test_a_failing_write_discards_and_names_sink_and_step() -> None:
    backend = MemoryBackend(refuse=SinkError("The topic was deleted; create it."))
    with pytest.raises(SinkError) as raised:
        run(backend)
    assert [transaction.end for transaction in backend.started] == ["discarded"]
    found = failure_of(raised.value)
    assert (found.type, found.step) == ("sink-error", "T2")
    assert found.message == "Sink 'out', subtask 0, epoch 7, T2: The topic was deleted; create it."


def test_a_full_disk_is_reported_as_storage_full() -> None:
    backend = MemoryBackend(refuse=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(StorageFull) as raised:
        run(backend)
    assert failure_of(raised.value).type == "storage-full"


def test_a_defect_of_a_backend_keeps_its_traceback() -> None:
    backend = MemoryBackend(refuse=KeyError("surprise"))
    with pytest.raises(Exception, match="surprise") as raised:
        run(backend)
    found = failure_of(raised.value)
    assert found.type == "epoch-aborted"
    assert found.traceback is not None and "in write" in found.traceback


def test_an_input_error_discards_the_transaction() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield ROWS[0]
        raise ConnectionResetError("the executor has terminated")

    backend = MemoryBackend()
    with pytest.raises(EpochAborted) as raised:
        list(SinkTask("out", backend, EPOCH)(broken()))
    assert isinstance(raised.value.__cause__, ConnectionResetError)
    assert [transaction.end for transaction in backend.started] == ["discarded"]


STEPS = ["T1.opened", "T2.processed", "T3.before-pre-commit", "T3.pre-committed"]


def test_fault_points_fire_in_the_order_of_the_steps() -> None:
    recorder = Recorder()
    with injected(recorder):
        run(MemoryBackend())
    assert recorder.hits == [(step, 7) for step in STEPS]


@pytest.mark.parametrize("step", STEPS)
def test_a_fault_discards_until_the_pre_commit_and_never_after(step: str) -> None:
    def fail(point: FaultPoint, epoch: int | None) -> None:
        if point.name == step:
            raise RuntimeError(f"fault at {step}")

    backend = MemoryBackend()
    with injected(fail), pytest.raises(Exception, match="fault at") as raised:
        run(backend)
    assert failure_of(raised.value).step == step[:2]
    expected = "pre-committed" if step == "T3.pre-committed" else "discarded"
    assert [transaction.end for transaction in backend.started] == [expected]
