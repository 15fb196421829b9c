"""A process that holds secrets, closed to other processes of its user."""

from __future__ import annotations

import ctypes
import sys

_SET_DUMPABLE = 4  # prctl(2)


def close_process() -> None:
    """Close this process's environment and memory to other processes of its user, but for root's (Linux).

    It is not passed on to children. In exchange there are no core files, and debuggers cannot attach.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
