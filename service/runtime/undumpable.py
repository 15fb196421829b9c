"""Protection of a process that holds secrets against other processes of its user."""

from __future__ import annotations

import ctypes
import sys

_SET_DUMPABLE = 4  # prctl(2)


def close_process() -> None:
    """Close this process's environment and memory to other processes of its user, except root's (Linux).

    Children do not inherit it. As a consequence no core files are written, and debuggers cannot attach.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
