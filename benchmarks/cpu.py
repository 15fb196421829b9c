"""CPU time of other processes of this machine, from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_seconds(process: int, waited_for: bool = False) -> float:
    """User and system time of a process; with ``waited_for`` also of its terminated children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if waited_for else 13])) / os.sysconf("SC_CLK_TCK")


def children(process: int, itself: bool = False) -> list[int]:
    listed = " ".join(path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")).split()
    return [*([process] if itself else []), *map(int, listed)]


def cpu_seconds_of_tree(process: int) -> float:
    """User and system time of a process and its descendants, including terminated ones."""
    return cpu_seconds(process, waited_for=True) + sum(map(cpu_seconds_of_tree, children(process)))
