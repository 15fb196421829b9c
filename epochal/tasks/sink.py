"""The task of a sink: one transaction per partition of the sink's input (T1 start, T2 write, T3 pre-commit)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.tasks.arrow_tasks import prepare_worker
from epochal.tasks.dead_letters import DeadLetters, SortedOut
from epochal.tasks.reporting import Reporting
from epochal.tasks.steps import BEFORE_PRE_COMMIT, OPENED, PRE_COMMITTED, PROCESSED, StepClock

SINK_RESULT = pa.schema([("sink", pa.string()), ("partition", pa.int32()), ("handle", pa.binary())])


@dataclass(frozen=True)
class SinkTask:
    """Writes the rows of its partition in one transaction of the sink's backend; yields one row of ``SINK_RESULT``.

    With ``dead_letters`` it has a transaction of their sink too, and yields a second row, with the handle of it. The
    subtasks of a sink are the partitions of its input: ``partition`` is Spark's partition id within the job. Raises
    the backend's errors, translated and marked by :class:`Reporting`, after it has discarded the transaction.
    """

    sink: str
    backend: SinkBackend
    epoch: EpochScope
    dead_letters: DeadLetters | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        subtask = current_partition()
        with Reporting(f"Sink {self.sink!r}", self.epoch.epoch, subtask=subtask) as reporting:
            clock = StepClock()
            transaction = self._start(TaskScope(self.epoch, self.sink, subtask))
            try:
                OPENED.hit(self.epoch.epoch)
                clock.ended("T1")
                reporting.step = "T2"
                for batch in clock.reading(iter(batches)):
                    transaction.write(batch)
                PROCESSED.hit(self.epoch.epoch)
                clock.ended("T2")
                reporting.step = "T3"
                BEFORE_PRE_COMMIT.hit(self.epoch.epoch)
                handle = transaction.pre_commit()
            except BaseException:
                transaction.discard()
                raise
            PRE_COMMITTED.hit(self.epoch.epoch)
            clock.ended("T3")
            answers = {self.sink: clock.answer(handle, clock.work)}
            if isinstance(transaction, SortedOut):
                answers |= transaction.answer()
            rows = {"sink": list(answers), "partition": [subtask] * len(answers), "handle": list(answers.values())}
            yield pa.RecordBatch.from_pydict(rows, schema=SINK_RESULT)

    def _start(self, task: TaskScope) -> SinkTransaction:
        transaction = self.backend.start(task)
        if self.dead_letters is None:
            return transaction
        try:
            return SortedOut(transaction, self.dead_letters, task)
        except BaseException:
            transaction.discard()
            raise


def current_partition() -> int:
    """The partition of the Spark task that this process runs; 0 outside Spark, as in tests."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
