"""Contract suite of sinks under faults: answers are lost, calls are repeated, and each call has its own process.

    class TestMySinkDegraded(SinkBackendContract):
        @pytest.fixture
        def harness(self, tmp_path):
            return DegradedSinkHarness(MyHarness(tmp_path), Losses(FileAnswers()))

The suite is unchanged; a wrapper between the suite and the backend injects the faults. Each call of the backend is
first made by new processes that each lose one answer, one answer after the other. Then two new processes make the call
without a loss. The first call of each kind loses each of its answers once; later calls lose one answer, in rotation.
:class:`Losses` keeps the count, for one test or, where calls are expensive, for all tests of a class.

A task that loses an answer has failed: it is discarded, its remains are swept, and another task writes the rows.
"""

from __future__ import annotations

import pickle
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import cloudpickle

from epochal.contracts.backend import DecidedEpoch, SinkBackend, SinkTransaction
from epochal.contracts.catalog import Succession
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import EpochalError, Fenced
from epochal.testing.lost_answers import AnswerLost, Loss, LostAnswers
from epochal.testing.sink_contract import Row, SinkHarness

Answer = TypeVar("Answer")

_instances: weakref.WeakValueDictionary[int, DegradedSink] = weakref.WeakValueDictionary()


def _found(number: int) -> DegradedSink:
    return _instances[number]


class Losses:
    """The answers of a call to lose: each answer during the first call, then one per call, in rotation."""

    def __init__(self, answers: LostAnswers) -> None:
        self._answers = answers
        self._known: dict[str, int] = {}
        self._turn: Counter[str] = Counter()

    def each(self, call: str, operation: Callable[[], object]) -> None:
        """Make the call once per lost answer. Raises every error that a lost answer does not explain."""
        for losing in self.rounds(call):
            with losing as loss:
                try:
                    operation()
                except Fenced:
                    raise
                except (EpochalError, AnswerLost):
                    if not loss.happened:
                        raise

    def rounds(self, call: str) -> Iterator[AbstractContextManager[Loss]]:
        """Yield blocks that lose one answer each, until a block loses none."""
        for number in self._numbers(call):
            entered: list[Loss] = []
            yield self._losing(number, entered)
            if not any(loss.happened for loss in entered):
                self._known.setdefault(call, number)
                return

    @contextmanager
    def _losing(self, number: int, entered: list[Loss]) -> Iterator[Loss]:
        with self._answers.losing(number) as loss:
            entered.append(loss)
            yield loss

    def _numbers(self, call: str) -> Iterator[int]:
        if call not in self._known:
            yield from count(1)
        self._turn[call] += 1
        yield 1 + self._turn[call] % self._known[call]


class DegradedSinkHarness(SinkHarness):
    """Wraps ``harness`` and loses answers according to ``losses``."""

    def __init__(self, harness: SinkHarness, losses: Losses) -> None:
        self.harness = harness
        self.losses = losses
        self.handed_out: list[tuple[EpochScope, Handle]] = []
        """Handles that the suite holds; sweeps must keep them."""

    def make(self) -> SinkBackend:
        return DegradedSink(self)

    def visible(self) -> list[Row]:
        return self.harness.visible()

    def leftovers(self) -> list[str]:
        return self.harness.leftovers()


class DegradedSink(SinkBackend):
    """The sink backend that the suite receives."""

    def __init__(self, degraded: DegradedSinkHarness) -> None:
        self._degraded = degraded
        self._schema: pa.Schema | None = None
        self._sent: bytes | None = None
        """The serialised backend for executors: one that has recovered."""
        _instances[id(self)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        # The suite pickles this object for executors. The wrapped backend is sent when a task starts.
        return _found, (id(self),)

    @property
    def kind(self) -> str:
        return self._once(lambda backend: backend.kind)

    @property
    def target(self) -> str:
        return self._once(lambda backend: backend.target)

    def check(self, schema: pa.Schema) -> None:
        self._again("check", lambda backend: backend.check(schema))
        self._schema = schema

    def recover(self, epoch: EpochScope) -> None:
        def recover(backend: SinkBackend) -> None:
            if self._schema is not None:
                backend.check(self._schema)
            backend.recover(epoch)
            self._sent = cloudpickle.dumps(backend)  # type: ignore[no-untyped-call]

        self._again("recover", recover)

    def succeed(self, epoch: EpochScope, succession: Succession) -> None:
        self._again("succeed", lambda backend: backend.succeed(epoch, succession))

    def start(self, task: TaskScope) -> SinkTransaction:
        return _DegradedTransaction(self, task)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self._again("commit", lambda backend: backend.commit(epoch, handles))

    def commit_decided(self, epochs: Sequence[DecidedEpoch]) -> None:
        self._again("commit", lambda backend: backend.commit_decided(epochs))

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self._again("abort", lambda backend: backend.abort(epoch, handles))

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        # After a lost answer only the target shows how much the call removed.
        before = len(self._degraded.leftovers())
        self._again("sweep", lambda backend: backend.sweep(epoch, keep))
        return before - len(self._degraded.leftovers())

    def write(self, task: TaskScope, batches: Sequence[pa.RecordBatch]) -> Handle:
        """Run a task that fails at each of its answers, until an attempt succeeds."""
        self._degraded.losses.each("pre-commit", lambda: self._attempt(task, batches))
        self._sweep_after(task)
        handle = self._written(task, batches).pre_commit()
        self._degraded.handed_out.append((task.epoch, handle))
        return handle

    def give_up(self, task: TaskScope, batches: Sequence[pa.RecordBatch]) -> None:
        """Discard tasks. A discard that loses an answer may leave remains for the sweep, but must not raise."""
        self._written(task, batches).discard()
        for losing in self._degraded.losses.rounds("discard"):
            transaction = self._written(task, batches)
            with losing:
                transaction.discard()
                transaction.discard()
        self._sweep_after(task)

    def _attempt(self, task: TaskScope, batches: Sequence[pa.RecordBatch]) -> None:
        transaction = self._written(task, batches)
        try:
            handle = transaction.pre_commit()
        except BaseException:
            transaction.discard()
            raise
        self._once(lambda backend: backend.abort(task.epoch, [handle]))

    def _written(self, task: TaskScope, batches: Sequence[pa.RecordBatch]) -> SinkTransaction:
        """Start a transaction in an executor and write all rows."""
        if self._sent is None:
            self._sent = cloudpickle.dumps(self._degraded.harness.make())  # type: ignore[no-untyped-call]
        executor: SinkBackend = pickle.loads(self._sent)
        transaction = executor.start(task)
        try:
            for batch in batches:
                transaction.write(batch)
        except BaseException:
            transaction.discard()
            raise
        return transaction

    def _sweep_after(self, task: TaskScope) -> None:
        keep = [handle for epoch, handle in self._degraded.handed_out if epoch.key == task.epoch.key]
        self._once(lambda backend: backend.sweep(task.epoch, keep))

    def _again(self, name: str, call: Callable[[SinkBackend], object]) -> None:
        """Make the call with each answer lost once, then twice without a loss, each time in another process."""
        self._degraded.losses.each(name, lambda: self._once(call))
        for _ in range(2):
            self._once(call)

    def _once(self, call: Callable[[SinkBackend], Answer]) -> Answer:
        """Make the call in a separate process."""
        harness = self._degraded.harness
        backend = harness.make()
        try:
            return call(backend)
        finally:
            harness.end(backend)


class _DegradedTransaction(SinkTransaction):
    """Buffers the rows until the transaction is pre-committed or discarded."""

    def __init__(self, sink: DegradedSink, task: TaskScope) -> None:
        self._sink, self._task = sink, task
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid:  # text that most sinks reject, here and not at the pre-commit
            self._sink.give_up(self._task, [batch])
        self._batches.append(batch)

    def pre_commit(self) -> Handle:
        return self._sink.write(self._task, self._batches)

    def discard(self) -> None:
        self._sink.give_up(self._task, self._batches)
