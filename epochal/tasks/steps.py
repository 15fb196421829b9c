"""The steps T1 to T3 of a task: their fault points, which are hit with the epoch's number, and their durations."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa

from epochal.contracts.handle import Handle
from epochal.contracts.measurements import Origin, TaskStep, Work
from epochal.faults import declare

OPENED = declare("T1.opened", "a task has its view of the parent epoch and an open transaction")
PROCESSED = declare("T2.processed", "a task has processed all its rows; nothing is durable")
BEFORE_PRE_COMMIT = declare("T3.before-pre-commit", "a task has yielded its output and is about to pre-commit")
PRE_COMMITTED = declare("T3.pre-committed", "a task's pre-commit is complete, its handle has not been passed to Spark")


class TaskRun(NamedTuple):
    """A run of a task by Spark. ``attempt``: 0 for the first run in an attempt of its stage."""

    stage: int
    attempt: int

    @classmethod
    def current(cls) -> TaskRun | None:
        """The run in which this code runs; ``None`` outside Spark."""
        from pyspark import TaskContext  # a pipeline is described without pyspark

        context = TaskContext.get()
        return None if context is None else cls(context.stageId(), context.attemptNumber())


class TaskAnswer(NamedTuple):
    """The handle of a task. ``seconds``: the duration of each step, if measured. ``work``: work of the subtask of an
    operator or a sink. ``ran``: the run of the task, if Spark ran it. ``machine``: the machine that ran it, if its
    cache has a name. ``read_bytes``: bytes of state that it read. ``reason``: why a sink rejected the first of the rows
    that the handle stands for."""

    handle: Handle
    seconds: dict[TaskStep, float]
    work: Work | None = None
    ran: TaskRun | None = None
    machine: str | None = None
    read_bytes: Mapping[Origin, int] = {}
    reason: str | None = None

    @classmethod
    def decode(cls, data: bytes) -> TaskAnswer:
        """The first line is the handle, the second one the other members, as JSON; the files of the handle follow."""
        _, _, rest = data.partition(b"\n")
        text, _, files = rest.partition(b"\n")
        measured = json.loads(text) if text else {}
        others = ("work", "ran", "files", "machine", "read", "reason")
        work, ran, sizes, machine, read, reason = (measured.pop(name, None) for name in others)
        handle = Handle.decode(data)
        if sizes:
            offsets = accumulate(sizes.values(), initial=0)
            carried = {path: files[at : at + size] for (path, size), at in zip(sizes.items(), offsets, strict=False)}
            handle = handle.model_copy(update={"carried": carried})
        worked, run = None if work is None else Work(*work), None if ran is None else TaskRun(*ran)
        return cls(handle, measured, worked, run, machine, read or {}, reason)


def machines_of(answers: Iterable[TaskAnswer]) -> dict[str, dict[int, str]]:
    """The machine that ran each subtask, by operator; only those that are known."""
    found: dict[str, dict[int, str]] = {}
    for answer in answers:
        if answer.machine is not None:
            found.setdefault(answer.handle.owner, {})[answer.handle.subtask] = answer.machine
    return found


def works_of(answers: Iterable[TaskAnswer]) -> dict[tuple[str, int], Work]:
    """The measured work by operator and subtask."""
    return {(answer.handle.owner, answer.handle.subtask): answer.work for answer in answers if answer.work is not None}


class StepClock:
    """Measures the steps of one transaction of a task. The first step begins with the object.

    A task is busy while it waits neither for its rows nor for the consumer of its output.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._at = clock()
        self._seconds: dict[TaskStep, float] = {}
        self._waited = 0.0
        self._rows = 0

    def ended(self, step: TaskStep) -> None:
        """Record the end of ``step`` and the start of the next one."""
        before, self._at = self._at, self._clock()
        self._seconds[step] = round(self._at - before, 6)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in the block as waiting."""
        began = self._clock()
        try:
            yield
        finally:
            self._waited += self._clock() - began

    def reading(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches. Counts their rows, and the time to fetch them as waiting."""
        while True:
            with self.waiting():
                batch = next(batches, None)
            if batch is None:
                return
            self._rows += batch.num_rows
            yield batch

    @property
    def work(self) -> Work:
        """The work up to the end of the last step."""
        return Work(self._rows, max(0.0, round(self._at - self._began - self._waited, 6)))

    def answer(
        self,
        handle: Handle,
        work: Work | None = None,
        machine: str | None = None,
        read: Mapping[Origin, int] | None = None,
        reason: str | None = None,
    ) -> bytes:
        """The bytes that :meth:`TaskAnswer.decode` reads."""
        members: dict[str, Any] = {step: seconds for step, seconds in self._seconds.items()}  # noqa: C416
        ran = TaskRun.current()
        if work is not None:
            members["work"] = work
        if ran is not None:
            members["ran"] = ran
        if machine is not None:
            members["machine"] = machine
        if read:
            members["read"] = read
        if reason is not None:
            members["reason"] = reason
        if handle.carried:
            members["files"] = {path: len(data) for path, data in handle.carried.items()}
        lines = [
            handle.encode(),
            json.dumps(members, separators=(",", ":")).encode(),
            b"".join(handle.carried.values()),
        ]
        return b"\n".join(lines)
