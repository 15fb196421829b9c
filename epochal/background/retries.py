"""Repeated calls: the pauses between attempts, and the loop over them.

Calls over HTTP are repeated by ``epochal.wire.http``, which also chooses the control plane of each attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Pauses that double from ``first`` to ``longest`` seconds."""

    first: float
    longest: float

    def pause(self, failures: int) -> float:
        """The pause after a number of consecutive failures, counted from 0."""
        return min(self.first * 2.0 ** min(failures, 64), self.longest)


@dataclass(frozen=True)
class Attempt:
    """One attempt of a call. ``number``: from 1. ``is_last``: no attempt follows it."""

    number: int
    is_last: bool


def attempts(
    pauses: Backoff | float,
    *,
    limit: int | None = None,
    timeout: float | None = None,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Attempt]:
    """Attempts with pauses between them; the caller leaves the loop when one succeeds.

    :param pauses: the seconds between two attempts, constant or doubling
    :param limit: maximum number of attempts
    :param timeout: seconds after which no further attempt begins; the last one begins at this time at the earliest
    :param sleep: waits for a number of seconds; a true result ends the loop
    """
    deadline = None if timeout is None else clock() + timeout
    number = 0
    while True:
        number += 1
        is_last = (limit is not None and number >= limit) or (deadline is not None and clock() >= deadline)
        yield Attempt(number, is_last)
        if is_last:
            return
        pause = pauses.pause(number - 1) if isinstance(pauses, Backoff) else pauses
        if deadline is not None:
            pause = min(pause, max(0.0, deadline - clock()))
        if sleep(pause):
            return
