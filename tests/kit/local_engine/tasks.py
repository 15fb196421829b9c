"""Tasks run in this process, as Spark would run them.

With planned faults, each task runs in a process of its own, which can die, and is retried as often as Spark would.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from epochal import faults
from epochal.errors import EpochAborted
from epochal.faults import Fault

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class LocalTasks:
    """Execution of tasks: planned ``faults``, and ``tries``, the attempts per task (Spark's ``local[N,TRIES]``)."""

    faults: Sequence[Fault] = ()
    tries: int = 1

    def run(self, task: bytes, batches: Sequence[pa.RecordBatch], partition: int) -> list[pa.RecordBatch]:
        """Return the output of a copy of the :func:`shipped` task.

        Raises the error of the last attempt, or ``EpochAborted`` if it was lost.
        """
        if not self.faults:
            return _run(task, batches, partition)
        left = self.tries
        while True:
            answer, left = self._run_apart(partial(_run, task, batches, partition)), left - 1
            if not isinstance(answer, Exception):
                return answer
            if left <= 0:
                raise answer

    def _run_apart(self, run: Callable[[], list[pa.RecordBatch]]) -> list[pa.RecordBatch] | Exception:
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            self._answer(writing, run)
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            data = answer.read()
        _, status = os.waitpid(process, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            return EpochAborted("A task's process has died.")
        found: list[pa.RecordBatch] | Exception = pickle.loads(data)
        return found

    def _answer(self, writing: int, run: Callable[[], list[pa.RecordBatch]]) -> NoReturn:
        code = 1
        try:
            faults.plan(self.faults)
            with os.fdopen(writing, "wb") as answer:
                answer.write(pickle.dumps(_result(run)))
            code = 0
        except BaseException:  # noqa: BLE001  the task's process must not go on as if it were the driver
            traceback.print_exc()
        finally:
            os._exit(code)


FAULTLESS: Final = LocalTasks()


def _result(run: Callable[[], list[pa.RecordBatch]]) -> list[pa.RecordBatch] | Exception:
    try:
        return run()
    except Exception as error:  # noqa: BLE001  the driver receives every exception of a task
        return error


def shipped(task: Task) -> bytes:
    """Serialise a task as Spark does: once for all partitions, each of which runs its own copy."""
    data: bytes = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
    return data


def _run(task: bytes, batches: Sequence[pa.RecordBatch], partition: int) -> list[pa.RecordBatch]:
    context = TaskContext._getOrCreate()
    context._partitionId = partition
    try:
        return list(pickle.loads(task)(iter(batches)))
    finally:
        TaskContext._setTaskContext(None)
