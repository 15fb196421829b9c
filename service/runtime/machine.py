"""Identity of this machine and of its current boot: the scope in which a process id, a lock or a folder is valid."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_IDS = Path("/proc/self/ns/pid")
_OF_THE_MACHINE = "pid:[4026531836]"
"""The initial process id namespace of a machine (PROC_PID_INIT_INO of Linux); each container has another."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True)
class Machine:
    """``boot`` is opaque: it differs after each boot of the machine, and in each of its containers, since process ids
    have another meaning there. Most containers also differ in ``host``, but not those that use the machine's
    network."""

    host: str
    boot: str

    def was_before(self, later: Machine) -> bool:
        """``True`` if this is an earlier boot of the same machine. Machines with the same name are not
        distinguished."""
        return self.host == later.host and _start(self.boot) != _start(later.boot)


@cache
def this_machine() -> Machine:
    return Machine(socket.gethostname(), _boot())


def steady_seconds() -> float:
    """A clock that cannot be set, common to all processes of the machine; it advances while the machine is
    suspended."""
    return time.clock_gettime(_CLOCK)


def _start(boot: str) -> str:
    return boot.partition("+")[0]


def _boot() -> str:
    try:
        start = _BOOT_ID.read_text().strip()
    except OSError:
        # macOS: seconds and microseconds of the boot time.
        command = ["sysctl", "-n", "kern.boottime"]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return listing.partition("}")[0].strip("{ ").replace(" ", "")
    with suppress(OSError):
        namespace = os.readlink(_PROCESS_IDS)
        if namespace != _OF_THE_MACHINE:
            return f"{start}+{namespace.strip('pid:[]')}"
    return start
