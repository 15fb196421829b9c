"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Return once it holds; an ``AssertionError`` when it has not come true in time."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if holds():
            return
        now = time.monotonic()
        assert now < deadline, "did not come true"
        # To look must not take the time of what is waited for, however slow the machine is.
        time.sleep(min(0.5, max(0.05, 4 * (now - began))))
