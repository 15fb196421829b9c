"""How long T1, T2 and T3 took in a task: measured by the task, and told to the driver behind its handle.

What the driver makes of it is a metric, and stands in no manifest: an answer is the handle, a line break, and the
seconds; whoever wants the handle alone reads the first line.
"""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from epochal.contracts.handle import Handle
from epochal.contracts.measurements import TaskStep


class TaskAnswer(NamedTuple):
    """``seconds``: by step, of a task that said so."""

    handle: Handle
    seconds: dict[TaskStep, float]

    @classmethod
    def decode(cls, data: bytes) -> TaskAnswer:
        _, _, seconds = data.partition(b"\n")
        return cls(Handle.decode(data), json.loads(seconds) if seconds else {})


class StepClock:
    """Of one transaction of a task, whose first step begins now."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._seconds: dict[TaskStep, float] = {}

    def ended(self, step: TaskStep) -> None:
        """The next one begins."""
        before, self._at = self._at, time.monotonic()
        self._seconds[step] = round(self._at - before, 6)

    def answer(self, handle: Handle) -> bytes:
        """What :meth:`TaskAnswer.decode` reads."""
        return handle.encode() + b"\n" + json.dumps(self._seconds, separators=(",", ":")).encode()
