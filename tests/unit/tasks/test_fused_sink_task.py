"""An operator and its sink in one task: the rows of both, and failures of one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.contracts.measurements import Work
from epochal.engine.failures import failure_of
from epochal.errors import AuthorError, SinkError
from epochal.tasks import sink
from epochal.tasks.fused_sink_task import BATCH_ROWS, FusedSink, FusedSinkTask
from epochal.tasks.operator import CONTROL, HANDLE, SUBTASK
from epochal.tasks.reporting import Reporting
from epochal.tasks.sink import SINK_RESULT, SinkTask
from epochal.tasks.steps import StepClock, TaskAnswer
from epochal.tasks.task_output import PassthroughColumn

EPOCH = EpochScope("application", EpochKey("main", 7), 1, EpochKey("main", 6))
GIVEN = pa.schema([("k", pa.string()), ("kept", pa.int64()), *CONTROL])
WRITTEN = pa.schema([("k", pa.string()), ("n", pa.int64())])


@dataclass
class Transaction(SinkTransaction):
    """Records its rows and its end."""

    task: TaskScope
    refused: bool
    batches: list[pa.RecordBatch] = field(default_factory=list)
    end: str = "open"

    def write(self, batch: pa.RecordBatch) -> None:
        if self.refused:
            raise SinkError("the disk has failed")
        self.batches.append(batch)

    def pre_commit(self) -> Handle:
        self.end = "pre-committed"
        rows = sum(batch.num_rows for batch in self.batches)
        return Handle(owner=self.task.owner, subtask=self.task.subtask, rows=rows, bytes=0, payload={})

    def discard(self) -> None:
        self.end = "discarded"


@dataclass
class Backend(SinkBackend):
    """A sink in memory."""

    refused: bool = False
    started: list[Transaction] = field(default_factory=list)
    kind = "memory"
    target = "memory:"

    def start(self, task: TaskScope) -> Transaction:
        self.started.append(Transaction(task, self.refused))
        return self.started[-1]

    def check(self, schema: pa.Schema) -> None: ...

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None: ...

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None: ...

    def recover(self, epoch: EpochScope) -> None: ...

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return 0


@dataclass
class Operator:
    """Yields a batch of the given size for each subtask, then its handle, as the task of an operator does."""

    sizes: Sequence[int]
    fails: bool = False
    end: str = "open"

    def __call__(self, batches: Any) -> Iterator[pa.RecordBatch]:
        try:
            with Reporting("Operator 'count'", 7, step="T2"):
                for subtask, size in enumerate(self.sizes):
                    columns = [pa.array(map(str, range(size))), pa.array([None, *range(1, size)][:size], pa.int64())]
                    nulls = [pa.nulls(size, each.type) for each in CONTROL]
                    yield pa.RecordBatch.from_arrays([*columns, *nulls], schema=GIVEN)
                    if self.fails:
                        raise AuthorError("Operator 'count': the author's code raised ValueError")
                    row = {"k": None, "kept": None, HANDLE: f"handle {subtask}".encode(), SUBTASK: subtask}
                    yield pa.RecordBatch.from_pylist([row], schema=GIVEN)
        except BaseException:
            self.end = "discarded"
            raise
        self.end = "pre-committed"


def task(operator: Operator, backend: Backend) -> FusedSinkTask:
    columns = (PassthroughColumn("k"), PassthroughColumn("kept", or_zero=True))
    return FusedSinkTask(operator, FusedSink(SinkTask("out", backend, EPOCH), columns, WRITTEN))  # type: ignore[arg-type]


def test_a_sink_does_not_work_while_it_waits_for_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class SlowTransaction(Transaction):
        def write(self, batch: pa.RecordBatch) -> None:
            now[0] += 2
            super().write(batch)

        def pre_commit(self) -> Handle:
            now[0] += 4
            return super().pre_commit()

    class SlowBackend(Backend):
        def start(self, task: TaskScope) -> Transaction:
            now[0] += 1
            return SlowTransaction(task, refused=False)

    def arriving() -> Iterator[pa.RecordBatch]:
        for size in (3, 2):
            now[0] += 100
            yield pa.record_batch({"k": ["a"] * size})
        now[0] += 100

    monkeypatch.setattr(sink, "StepClock", partial(StepClock, lambda: now[0]))
    (batch,) = SinkTask("out", SlowBackend(), EPOCH)(arriving())
    answer = TaskAnswer.decode(batch.column("handle")[0].as_py())
    assert answer.seconds == {"T1": 1.0, "T2": 304.0, "T3": 4.0}
    assert answer.work == Work(rows=5, busy_seconds=1 + 2 * 2 + 4)


def test_the_sink_receives_the_rows_and_the_driver_all_handles() -> None:
    operator, backend = Operator([3, 2]), Backend()
    result = pa.Table.from_batches(task(operator, backend)(iter([])), SINK_RESULT).to_pylist()
    (transaction,) = backend.started
    assert (operator.end, transaction.end) == ("pre-committed", "pre-committed")
    written = pa.Table.from_batches(transaction.batches)
    assert written.schema == WRITTEN
    assert written.to_pydict() == {"k": ["0", "1", "2", "0", "1"], "n": [0, 1, 2, 0, 1]}
    assert [(row["sink"], row["partition"]) for row in result] == [("out", 0), (None, 0), (None, 0)]
    assert Handle.decode(result[0]["handle"]).rows == 5
    assert [row["handle"] for row in result[1:]] == [b"handle 0", b"handle 1"]


def test_a_sink_receives_batches_of_the_spark_batch_size() -> None:
    backend = Backend()
    list(task(Operator([1, 7, 2 * BATCH_ROWS, 5]), backend)(iter([])))
    assert [batch.num_rows for batch in backend.started[0].batches] == [BATCH_ROWS, BATCH_ROWS, 13]


def test_handles_are_returned_without_rows() -> None:
    operator, backend = Operator([0]), Backend()
    result = pa.Table.from_batches(task(operator, backend)(iter([])), SINK_RESULT)
    assert (backend.started[0].batches, result["sink"].to_pylist()) == ([], ["out", None])


def test_an_error_of_the_operator_is_not_reported_as_the_sinks() -> None:
    operator, backend = Operator([3], fails=True), Backend()
    with pytest.raises(AuthorError) as raised:
        list(task(operator, backend)(iter([])))
    failure = failure_of(raised.value)
    assert (failure.message, failure.step) == ("Operator 'count': the author's code raised ValueError", "T2")
    assert str(raised.value).count("epochal-failure") == 1
    assert (operator.end, backend.started[0].end) == ("discarded", "discarded")


def test_a_failure_of_the_sink_discards_the_operators_transaction() -> None:
    operator, backend = Operator([BATCH_ROWS, 1]), Backend(refused=True)
    with pytest.raises(SinkError) as raised:
        list(task(operator, backend)(iter([])))
    assert failure_of(raised.value).message.startswith("Sink 'out', subtask 0, epoch 7, T2")
    assert (operator.end, backend.started[0].end) == ("discarded", "discarded")


def test_an_operator_without_reader_returns_only_handles() -> None:
    silent = FusedSinkTask(Operator([]))  # type: ignore[arg-type]
    assert list(silent(iter([]))) == []
    with pytest.raises(AssertionError, match="without a reader"):
        list(FusedSinkTask(Operator([1]))(iter([])))  # type: ignore[arg-type]
