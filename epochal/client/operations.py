"""Operations: long work of the control plane."""

from __future__ import annotations

import time
from collections.abc import Callable

from epochal.client.models import Operation
from epochal.client.paths import path
from epochal.client.problems import error_of_problem
from epochal.client.transport import Transport, read
from epochal.errors import EpochalError, NotYetCommitted

Progress = Callable[[Operation], None]

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

    def wait(
        self, operation: str | Operation, on_progress: Progress | None = None, timeout_seconds: float | None = None
    ) -> Operation:
        """Wait until the operation has succeeded; ``on_progress`` is called with each state that was seen.

        Raises the error that it failed with, or ``NotYetCommitted`` when ``timeout_seconds`` are over (it goes on).
        """
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        pause = SHORTEST_PAUSE_SECONDS
        current = operation if isinstance(operation, Operation) else self.get(operation)
        while True:
            if on_progress is not None:
                on_progress(current)
            if current.state == "succeeded":
                return current
            if current.state == "failed":
                if current.error is None:
                    raise EpochalError(
                        f"The {current.kind} failed and gave no reason; look at the control plane's log."
                    )
                raise error_of_problem(current.error)
            if end is not None and time.monotonic() >= end:
                raise NotYetCommitted(
                    f"The {current.kind} has not ended after {timeout_seconds:g} s; it goes on, as {current.id}."
                )
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
            current = self.get(current.id)
