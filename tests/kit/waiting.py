"""Waiting for effects of other processes or threads."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until ``holds()`` is true. Raises ``AssertionError`` after the timeout."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if holds():
            return
        now = time.monotonic()
        assert now < deadline, "the condition did not become true before the timeout"
        # Polling must not slow down the observed process, even on a slow machine.
        time.sleep(min(0.5, max(0.05, 4 * (now - began))))
