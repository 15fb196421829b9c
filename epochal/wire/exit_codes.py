"""How a driver ends."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """``FAILED`` was reported through ``finish`` where that was possible."""

    FINISHED = 0
    FAILED = 1
    BAD_ORDERS = 2
    FENCED = 3
