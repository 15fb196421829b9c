"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Return once it holds; an ``AssertionError`` when it has not come true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.02)
