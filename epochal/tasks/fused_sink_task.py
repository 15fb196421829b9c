"""An operator and the only sink that reads it, without Spark transforms between them, as one task."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from epochal.errors import EpochalError
from epochal.tasks.operator import HANDLE, OperatorTask
from epochal.tasks.sink import SINK_RESULT, SinkTask, current_partition
from epochal.tasks.task_output import PassthroughColumn

BATCH_ROWS = 50_000
"""Maximum rows of a batch for the sink: the batch size that Spark would use (``DEFAULTS`` of ``engine.session``)."""


@dataclass(frozen=True)
class FusedSink:
    """The sink that receives the operator's rows. ``columns``: its input columns, in the order of ``schema``."""

    sink: SinkTask
    columns: tuple[PassthroughColumn, ...]
    schema: pa.Schema

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = (column.of(batch) for column in self.columns)
        fields = zip(arrays, self.schema, strict=True)
        return pa.RecordBatch.from_arrays([array.cast(field.type) for array, field in fields], schema=self.schema)


@dataclass(frozen=True)
class FusedSinkTask:
    """Yields rows of ``SINK_RESULT``: the sink's row, as :class:`SinkTask` does, then one row without a sink for each
    subtask of the operator, with its handle.

    ``writing`` is ``None`` for an operator without a reader, which is then silent. Raises the errors of both tasks,
    after both have discarded the transactions that were not pre-committed.
    """

    operator: OperatorTask
    writing: FusedSink | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        answers: list[pa.RecordBatch] = []
        with closing(self._rows(batches, answers)) as rows:
            if self.writing is None:
                for _ in rows:
                    raise AssertionError("an operator without a reader yields no rows")
            else:
                try:
                    yield from self.writing.sink(_regrouped(map(self.writing.rows, rows)))
                except _OperatorFailed as failed:
                    raise failed.error from failed.error.__cause__
        yield from answers

    def _rows(
        self, batches: Iterable[pa.RecordBatch], answers: list[pa.RecordBatch]
    ) -> Generator[pa.RecordBatch, None, None]:
        """The operator's rows. Appends the rows with its handles to ``answers``."""
        produced = self.operator(batches)
        while True:
            try:
                batch = next(produced, None)
            except EpochalError as error:
                if self.writing is None:
                    raise
                raise _OperatorFailed(error) from error
            if batch is None:
                return
            if batch.num_rows and batch.column(HANDLE).null_count == 0:
                answers.append(_answer(batch))
            else:
                yield batch


class _OperatorFailed(BaseException):
    """Passes an error of the operator through the sink's task, which discards its transaction without reporting it."""

    def __init__(self, error: EpochalError) -> None:
        super().__init__(error)
        self.error = error


def _answer(batch: pa.RecordBatch) -> pa.RecordBatch:
    partitions = pa.repeat(pa.scalar(current_partition(), pa.int32()), batch.num_rows)
    columns = [pa.nulls(batch.num_rows, pa.string()), partitions, batch.column(HANDLE)]
    return pa.RecordBatch.from_arrays(columns, schema=SINK_RESULT)


def _regrouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of :data:`BATCH_ROWS`. Sinks may write something for each batch."""
    kept: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        while rows + batch.num_rows >= BATCH_ROWS:
            room = BATCH_ROWS - rows
            yield _one([*kept, batch.slice(0, room)])
            batch, kept, rows = batch.slice(room), [], 0
        if batch.num_rows:
            kept.append(batch)
            rows += batch.num_rows
    if kept:
        yield _one(kept)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
