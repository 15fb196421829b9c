"""The task of a stateful operator: (state at the parent epoch, slice) -> (output, delta), and nothing else.

The task never changes state in place (design decision 1), so that Spark may run it twice, speculate or lose it. Each
run has its own transaction. Only the run whose handle reaches a published manifest takes effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import pyarrow as pa

from epochal.contracts.conditions import Due, EpochConditions, Watermarks
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope
from epochal.contracts.state import StateBackend, StateTaskScope, StateTransaction, StateView
from epochal.declarations.reconcile import Reconcile
from epochal.snapshots import read_counts
from epochal.snapshots.chain import Chain
from epochal.state.expiry import StateClock
from epochal.state.table import Column, StateTable
from epochal.state.unexpired import unexpired
from epochal.tasks.arrow_tasks import prepare_worker
from epochal.tasks.reconciling import reconciling
from epochal.tasks.reporting import Reporting
from epochal.tasks.steps import BEFORE_PRE_COMMIT, OPENED, PRE_COMMITTED, PROCESSED, StepClock
from epochal.tasks.subtask_rows import Call, CallReader
from epochal.tasks.task_output import OutputBatch, SideRows, TaskOutput

HANDLE, SUBTASK = "_handle", "_subtask"
CONTROL = (pa.field(HANDLE, pa.binary()), pa.field(SUBTASK, pa.int32()))


@dataclass(frozen=True)
class Ownership:
    """The key groups that a subtask owns, and so the keys that it may read and write."""

    subtask: int
    parallelism: int
    max_parallelism: int


class DueTimes:
    """The times that a subtask waits for after the epoch. The earliest of each clock is part of the handle.

    The work adds all waiting times, also those of state that this epoch did not change: the next epoch collects them
    again.
    """

    def __init__(self) -> None:
        self._event: int | None = None
        self._processing: int | None = None
        self.dropped_timers = 0
        """Number of timers that can no longer fire because the input has ended."""

    def add(self, *, event: int | None = None, processing: int | None = None) -> None:
        """Wait for the watermark ``fire`` to reach ``event``, or for the epoch time to reach ``processing``.

        Both in microseconds from the Unix epoch.
        """
        if event is not None and (self._event is None or event < self._event):
            self._event = event
        if processing is not None and (self._processing is None or processing < self._processing):
            self._processing = processing

    @property
    def earliest(self) -> Due:
        return Due(event=self._event, processing=self._processing)


class Agreement:
    """A result that must be the same in every subtask. ``digest`` is part of the handle; E3 compares the digests."""

    def __init__(self) -> None:
        self.digest: str | None = None


@dataclass(frozen=True)
class Subtask:
    """The context of T2 in one subtask: its identity, the conditions of the epoch, its tables, its transaction."""

    operator: str
    epoch: EpochScope
    conditions: EpochConditions
    ownership: Ownership
    key: tuple[Column, ...]
    tables: tuple[StateTable, ...]
    output: pa.Schema
    sides: Mapping[str, pa.Schema]
    transaction: StateTransaction
    due: DueTimes
    agreement: Agreement

    @property
    def watermarks(self) -> Watermarks:
        """The operator's watermarks: ``late`` decides which rows are late, ``fire`` what fires after them."""
        return self.conditions.watermarks(self.operator)

    @property
    def epoch_time(self) -> int:
        """The processing time of the epoch, in microseconds from the Unix epoch."""
        return self.conditions.epoch_time

    @property
    def draining(self) -> bool:
        """True if this is the last epoch."""
        return self.conditions.draining

    @property
    def subtask(self) -> int:
        return self.ownership.subtask

    @property
    def max_parallelism(self) -> int:
        return self.ownership.max_parallelism

    def living(self, table: StateTable) -> StateView:
        """A state table at the parent epoch without the rows that have expired when this epoch opens.

        Otherwise results would depend on the time since the previous epoch.
        """
        clock = StateClock(self.watermarks.late, self.epoch_time)
        return unexpired(table, self.transaction.view(table.id), table.horizon(clock))

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.key)


class Work(Protocol):
    """T2 of one kind of operator. Frozen and serialisable; ``run`` holds everything that belongs to one run."""

    needs_order: ClassVar[bool]
    """True if ``run`` requires rows sorted by key. Sorted rows stream; otherwise the task reads all rows first."""

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        """Read all ``rows`` of the subtask, stage its changes, yield its output with the columns ``subtask.output``.

        Rows of side outputs are yielded as ``SideRows``, with the columns of ``subtask.sides``.
        """


@dataclass(frozen=True)
class OperatorTask:
    """The function of ``mapInArrow`` for one operator in one epoch. The package's docstring describes input and output.

    Raises the errors of the backend, the author's code and the checks as ``EpochalError``, marked by
    :class:`Reporting`, after it has discarded the transactions that were not pre-committed.
    """

    operator: str
    work: Work
    backend: StateBackend
    epoch: EpochScope
    conditions: EpochConditions
    parallelism: int
    max_parallelism: int
    tables: tuple[StateTable, ...]
    chains: Mapping[str, Chain]
    key: tuple[Column, ...]
    output: pa.Schema
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)
    reconcile: Mapping[str, Reconcile] = field(default_factory=dict)
    """By partial state table, the author's function that reconciles two instances, if any."""
    silent: bool = False
    """True if the output has no reader: the task then yields only side outputs and handles."""
    silent_sides: frozenset[str] = frozenset()
    """The side outputs without a reader."""

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that the task yields."""
        return pa.schema([*self._tagged.schema, *CONTROL])

    @cached_property
    def _tagged(self) -> TaskOutput:
        return TaskOutput(self.output, self.sides)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with Reporting(f"Operator {self.operator!r}", self.epoch.epoch) as reporting:
            for subtask, rows in self._calls(batches):
                reporting.subtask, reporting.step = subtask, "T1"
                yield from self._serve(subtask, rows, reporting)

    def _calls(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Call]:
        reader = CallReader(self.operator)
        return reader.in_order(batches) if self.work.needs_order else reader.gathered(batches)

    def _serve(self, subtask: int, rows: Iterator[pa.RecordBatch], reporting: Reporting) -> Iterator[pa.RecordBatch]:
        epoch, clock, read_before = self.epoch.epoch, StepClock(), read_counts.totals()
        transaction, due, agreement = self.backend.start(self._scope(subtask)), DueTimes(), Agreement()
        try:
            OPENED.hit(epoch)
            transaction = reconciling(
                transaction, self.tables, subtask, self.parallelism, self.max_parallelism, self.reconcile
            )
            clock.ended("T1")
            reporting.step = "T2"
            for batch in self.work.run(self._subtask(subtask, transaction, due, agreement), clock.reading(rows)):
                if self._is_read(batch):
                    tagged = self._with_control(self._tagged.tagged(batch))
                    with clock.waiting():
                        yield tagged
            PROCESSED.hit(epoch)
            clock.ended("T2")
            reporting.step = "T3"
            BEFORE_PRE_COMMIT.hit(epoch)
            handle = _completed(transaction.pre_commit(), due, agreement)
        except BaseException:
            transaction.discard()
            raise
        PRE_COMMITTED.hit(epoch)
        clock.ended("T3")
        yield self._handle_row(
            clock.answer(handle, clock.work, self.backend.cache_name, read_counts.totals() - read_before), subtask
        )

    def _scope(self, subtask: int) -> StateTaskScope:
        return StateTaskScope(
            self.epoch, self.operator, subtask, self.parallelism, self.max_parallelism, self.tables, self.chains
        )

    def _subtask(self, subtask: int, transaction: StateTransaction, due: DueTimes, agreement: Agreement) -> Subtask:
        return Subtask(
            self.operator,
            self.epoch,
            self.conditions,
            Ownership(subtask, self.parallelism, self.max_parallelism),
            self.key,
            self.tables,
            self.output,
            self.sides,
            transaction,
            due,
            agreement,
        )

    def _is_read(self, batch: OutputBatch) -> bool:
        if isinstance(batch, SideRows):
            return bool(batch.rows.num_rows) and batch.side not in self.silent_sides
        return bool(batch.num_rows) and not self.silent

    def _with_control(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        nulls = [pa.nulls(batch.num_rows, field.type) for field in CONTROL]
        return pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=self.schema)

    def _handle_row(self, answer: bytes, subtask: int) -> pa.RecordBatch:
        nulls = [pa.nulls(1, field.type) for field in self._tagged.schema]
        control = [pa.array([answer], pa.binary()), pa.array([subtask], pa.int32())]
        return pa.RecordBatch.from_arrays([*nulls, *control], schema=self.schema)


def _completed(handle: Handle, due: DueTimes, agreement: Agreement) -> Handle:
    """The backend's handle with due times, the digest to compare, and the number of dropped timers."""
    added = {
        "due": None if due.earliest.nothing else due.earliest,
        "agreed": agreement.digest,
        "dropped_timers": due.dropped_timers or None,
    }
    return handle.model_copy(update={name: value for name, value in added.items() if value is not None})
