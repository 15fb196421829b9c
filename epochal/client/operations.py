"""Operations: long-running work of the control plane, and waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from epochal.client.exchanges import path
from epochal.client.models import Operation
from epochal.client.transport import Transport
from epochal.errors import EpochalError, NotYetCommitted
from epochal.wire.bodies import read
from epochal.wire.problems import error_of_problem

Progress = Callable[[Operation], None]


Seen = TypeVar("Seen")


SHORTEST_PAUSE_SECONDS = 0.1


LONGEST_PAUSE_SECONDS = 1.0


class Operations:
    """``client.operations``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, id: str) -> Operation:
        return read(Operation, self._transport.get(path("operations", id)))

    def list(self, limit: int | None = None) -> list[Operation]:
        return self._transport.pages("/v1/operations", Operation, limit)

    def cancel(self, operation: str | Operation) -> Operation:
        """Cancel an operation and delete its partial results; :meth:`wait` then raises ``OperationCancelled``.

        Raises ``Conflict`` for operations of the driver (start, stop, savepoint, ..) and for completed operations. A
        cancelled operation is returned unchanged.
        """
        id = operation if isinstance(operation, str) else operation.id
        return read(Operation, self._transport.post(path("operations", id, "cancel"), {}))

    def wait(
        self, operation: str | Operation, on_progress: Progress | None = None, timeout_seconds: float | None = None
    ) -> Operation:
        """Wait until the operation has succeeded. ``on_progress`` receives each state that is read.

        Raises the error of the operation, ``OperationCancelled``, or ``NotYetCommitted`` after ``timeout_seconds``; the
        operation continues then.
        """
        first = operation if isinstance(operation, Operation) else self.get(operation)
        ended = poll(
            first,
            lambda: self.get(first.id),
            until=lambda now: now.finished_at is not None,
            on_progress=on_progress,
            timeout_seconds=timeout_seconds,
            what=f"operation {first.id} ({first.kind})",
        )
        if ended.state == "succeeded":
            return ended
        if ended.error is None:
            raise EpochalError(f"The {ended.kind} failed without a reason; see the control plane's log.")
        raise error_of_problem(ended.error)


def poll(
    first: Seen,
    ask: Callable[[], Seen],
    *,
    until: Callable[[Seen], bool],
    on_progress: Callable[[Seen], None] | None,
    timeout_seconds: float | None,
    what: str,
) -> Seen:
    """Poll until ``until`` holds, and return that answer; ``on_progress`` receives each answer. Raises
    ``NotYetCommitted`` after ``timeout_seconds``."""
    end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause = SHORTEST_PAUSE_SECONDS
    current = first
    while True:
        if on_progress is not None:
            on_progress(current)
        if until(current):
            return current
        if end is not None and time.monotonic() >= end:
            raise NotYetCommitted(
                f"Waiting for {what} took longer than {timeout_seconds:g} s. It continues in the background."
            )
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
        current = ask()
