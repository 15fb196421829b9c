"""Processes beside the driver, each of which applies the parts of one shard.

A process has its own connection and interpreter, so that the shards of an epoch are decoded, encoded and sent
concurrently. It reads the log itself: the driver sends it handles. It is as expendable as the driver: the fence of its
shard determines what it has applied, also after its death or that of the driver, with which it ends.
"""

from __future__ import annotations

import json
import traceback
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from epochal.backends.dbms.shard import ShardPart, ShardWriter
from epochal.background.child_process import ChildProcess, answers_to_parent, messages_of_parent
from epochal.errors import EpochalError, Fenced, OutcomeUnknown, SinkError, error_class


class ShardProcesses:
    """The processes of a sink, by shard. They start when they are first needed, and after one has ended."""

    def __init__(self, sink: str, writer: ShardWriter) -> None:
        self._sink = sink
        self._writer = writer
        self._processes: dict[int, ChildProcess] = {}
        self._finalizer = weakref.finalize(self, _end_all, self._processes)

    def commit(self, parts: Sequence[ShardPart]) -> None:
        """Apply the parts concurrently; when all have ended, raise the first error. ``Fenced`` takes precedence."""
        with ThreadPoolExecutor(len(parts), thread_name_prefix="epochal-dbms-shard") as pool:
            futures = [pool.submit(self._commit, part) for part in parts]
            raise_first([(part.shard, future.exception()) for part, future in zip(parts, futures, strict=True)])

    def close(self) -> None:
        """End the processes; the database rolls back their open transactions."""
        _end_all(self._processes)

    def _commit(self, part: ShardPart) -> None:
        process = self._processes.get(part.shard)
        if process is None:
            process = self._processes[part.shard] = ChildProcess(__name__)
            process.send(self._writer)
        process.send(part)
        answer = process.answers.readline()
        if not answer.endswith(b"\n"):
            del self._processes[part.shard]
            code = process.wait()
            process.end()
            raise OutcomeUnknown(
                f"Sink {self._sink!r}: the process of the shard ended with exit code {code}; see the driver's log. The "
                "outcome is checked, then the transaction is repeated if necessary."
            )
        if problem := json.loads(answer):
            raise (error_class(problem["slug"]) or SinkError)(problem["message"])


def in_this_process(writer: ShardWriter, parts: Sequence[ShardPart]) -> None:
    """Apply the parts one after the other; each is tried, whatever happens to the others."""
    raise_first([(part.shard, _error_of(partial(writer.commit, part))) for part in parts])


def raise_first(outcomes: Sequence[tuple[int, BaseException | None]]) -> None:
    """Raise the first error, with its shard if there are several. ``Fenced`` takes precedence."""
    errors = [(shard, error) for shard, error in outcomes if error is not None]
    for shard, error in sorted(errors, key=lambda each: not isinstance(each[1], Fenced)):
        if isinstance(error, EpochalError) and len(outcomes) > 1:
            raise type(error)(f"Shard {shard}: {error.message}") from error
        raise error


def _error_of(work: Callable[[], None]) -> Exception | None:
    try:
        work()
    except Exception as error:  # noqa: BLE001  raised by the caller, after the other parts
        return error
    return None


def _end_all(processes: dict[int, ChildProcess]) -> None:
    while processes:
        processes.popitem()[1].end()


def main() -> None:
    """Main function of a process: receives the writer, then one part after the other, and answers each with a line."""
    answers = answers_to_parent()
    messages = messages_of_parent()
    writer: ShardWriter = next(messages)
    for part in messages:
        answers.write(json.dumps(_problem(_error_of(partial(writer.commit, part)))).encode() + b"\n")
        answers.flush()


def _problem(error: Exception | None) -> dict[str, str] | None:
    if error is None:
        return None
    if isinstance(error, EpochalError):
        return {"slug": error.slug, "message": error.message}
    traceback.print_exception(error)
    return {"slug": SinkError.slug, "message": f"{type(error).__name__}: {error}"}
