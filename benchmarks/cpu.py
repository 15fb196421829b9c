"""CPU of other processes of this machine, by the kernel's accounts."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_seconds(process: int, waited_for: bool = False) -> float:
    """User and system time since it began; ``waited_for``: and of its children that are over."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if waited_for else 13])) / os.sysconf("SC_CLK_TCK")


def children(process: int, itself: bool = False) -> list[int]:
    listed = " ".join(path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")).split()
    return [*([process] if itself else []), *map(int, listed)]


def cpu_seconds_of_tree(process: int) -> float:
    """Of a process, its children, and theirs, those that are over too."""
    return cpu_seconds(process, waited_for=True) + sum(map(cpu_seconds_of_tree, children(process)))
