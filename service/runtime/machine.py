"""Which machine this is, and since which start of it: what a process id, a lock or a folder is only valid within."""

from __future__ import annotations

import socket
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Machine:
    """``boot`` is opaque: another one after each start of the machine. Containers of one machine differ in ``host``."""

    host: str
    boot: str


@cache
def this_machine() -> Machine:
    return Machine(socket.gethostname(), _boot())


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        # macOS: seconds and microseconds of the start.
        command = ["sysctl", "-n", "kern.boottime"]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return listing.partition("}")[0].strip("{ ").replace(" ", "")
