"""Memory available to further processes: on this machine, and below the limit of its container."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_OF_THE_MACHINE = Path("/proc/meminfo")
_OF_THE_CONTAINER = Path("/sys/fs/cgroup")
ENOUGH_BYTES = 6 << 30
"""A spare driver requires about 1 GB, a builder with Spark about 0.5 GB; the rest is for applications."""


def free_bytes(machine: Path = _OF_THE_MACHINE, container: Path = _OF_THE_CONTAINER) -> int | None:
    """The lesser of the two, in bytes; ``None`` if the system reports neither."""
    known = []
    with suppress(OSError):
        found = re.search(r"^MemAvailable:\s*(\d+) kB", machine.read_text(), re.MULTILINE)
        known += [] if found is None else [int(found[1]) << 10]
    with suppress(OSError, ValueError):  # "max": no limit
        limit = int((container / "memory.max").read_text())
        known.append(limit - int((container / "memory.current").read_text()))
    return min(known, default=None)


def usual_warm_drivers(free: int | None) -> tuple[int, str]:
    """Default number of warm drivers, and the reason if it is 0; ``free`` in bytes."""
    if free is None:
        return 0, "this system does not report its free memory"
    if free < ENOUGH_BYTES:
        return 0, f"less than {ENOUGH_BYTES >> 30} GiB of memory is free ({free / (1 << 30):.1f} GiB)"
    return 1, ""
