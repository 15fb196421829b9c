"""Asking again until something has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from epochal.errors import NotYetCommitted

Seen = TypeVar("Seen")

SHORTEST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0


def poll(
    first: Seen,
    ask: Callable[[], Seen],
    *,
    until: Callable[[Seen], bool],
    on_progress: Callable[[Seen], None] | None,
    timeout_seconds: float | None,
    what: str,
) -> Seen:
    """The first answer for which ``until`` holds; ``on_progress`` sees each. Raises ``NotYetCommitted`` on time-out."""
    end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause = SHORTEST_PAUSE_SECONDS
    current = first
    while True:
        if on_progress is not None:
            on_progress(current)
        if until(current):
            return current
        if end is not None and time.monotonic() >= end:
            raise NotYetCommitted(f"Waiting for {what} took longer than {timeout_seconds:g} s; it goes on by itself.")
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
        current = ask()
