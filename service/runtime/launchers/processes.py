"""Processes of this machine by (process id, start time): a reused id is never mistaken for the old process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from epochal.background.retries import attempts

_STATE, _START_TIME = 0, 19
"""Positions in ``/proc/{pid}/stat`` after the command's closing parenthesis (proc(5): fields 3 and 22)."""
_BEHIND, _AS_OTHERS = "10", "0"
"""Niceness (sched(7)). At 10, a session gets a tenth of a core for which another session competes."""
_TRIES, _AGAIN_SECONDS = 20, 0.05
_COMMAND_SECONDS = 1.0
"""Time that one listing waits for processes that do not show a command yet, all of them together."""
_MOST_COMMAND_BYTES = 1 << 14
"""A longer command is not a driver's. An author's process can show one of any length."""


@dataclass(frozen=True)
class LocalProcess:
    """``started`` is opaque: equal for the same process, different for a later one with the same id."""

    pid: int
    started: str

    @classmethod
    def find(cls, pid: int) -> LocalProcess | None:
        """The process that currently has this id; ``None`` if there is none, or if it is a zombie."""
        started = _start_time(pid)
        return None if started is None else cls(pid, started)

    @classmethod
    def parse(cls, text: str) -> LocalProcess:
        pid, _, started = text.partition("@")
        return cls(int(pid), started)

    def __str__(self) -> str:
        return f"{self.pid}@{self.started}"

    def exists(self) -> bool:
        return LocalProcess.find(self.pid) == self

    def signal_group(self, signal_number: signal.Signals) -> None:
        """Signal the process group that this process leads, if the process is still this one."""
        if self.exists():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal_number)


def let_others_go_first(session: int, others_first: bool = True) -> None:
    """Lower the priority of a session below all others of this machine, or restore it.

    Has an effect only if the kernel groups processes by session (``sched_autogroup_enabled``, sched(7)), which most
    containers disable.
    """
    for _ in attempts(_AGAIN_SECONDS, limit=_TRIES):
        try:
            Path(f"/proc/{session}/autogroup").write_text(_BEHIND if others_first else _AS_OTHERS)
        except BlockingIOError:  # the kernel accepts one change in a tenth of a second
            continue
        except OSError:
            return
        else:
            return


def session_leaders(user: int) -> Iterator[tuple[LocalProcess, tuple[str, ...]]]:
    """The processes of ``user`` that lead a session of their own, and their commands with all arguments."""
    if Path("/proc/self/stat").exists():
        yield from _session_leaders_from_proc(user)
        return
    command = ["ps", "-ww", "-axo", "uid=,pid=,pgid=,args="]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    # A command may contain line separators: what follows one is not a process.
    lines = (re.fullmatch(r"\s*(\d+)\s+(\d+)\s+(\d+)\s(.*)", line, re.ASCII) for line in done.stdout.split("\n"))
    for uid, pid, group, arguments in (found.groups() for found in lines if found is not None):
        if int(uid) == user and pid == group and (process := LocalProcess.find(int(pid))) is not None:
            yield process, tuple(arguments.split())


def _session_leaders_from_proc(user: int) -> Iterator[tuple[LocalProcess, tuple[str, ...]]]:
    patience = _COMMAND_SECONDS
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        # A process that ends meanwhile is skipped.
        with suppress(OSError):
            if entry.stat().st_uid != user or os.getsid(pid) != pid:
                continue
            process = LocalProcess.find(pid)
            if process is None:
                continue
            began = time.monotonic()
            arguments = _arguments_from_proc(process, began + patience)
            patience -= time.monotonic() - began
            if arguments:
                yield process, arguments


def _arguments_from_proc(process: LocalProcess, until: float) -> tuple[str, ...]:
    """Return no arguments where the process shows no command by ``until``, or one that is too long.

    execve(2) closes descriptors marked close-on-exec, so that the parent continues, before the kernel has laid out the
    command: until then a process that has been started shows none. A process can also clear its command (prctl(2))."""
    while True:
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:
            data = file.read(_MOST_COMMAND_BYTES + 1)
        if len(data) > _MOST_COMMAND_BYTES:
            return ()
        if data or not process.exists() or time.monotonic() > until:
            return tuple(data.decode(errors="replace").split("\0")[:-1])
        time.sleep(0.001)


def _start_time(pid: int) -> str | None:
    if Path("/proc/self/stat").exists():
        return _start_time_from_proc(pid)
    command = ["ps", "-o", "state=,lstart=", "-p", str(pid)]
    listing = subprocess.run(command, capture_output=True, text=True, check=False)
    state, _, started = listing.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip().replace(" ", "-")


def _start_time_from_proc(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The process chooses its name: any bytes, with spaces and parentheses. Nothing after the last parenthesis is its.
    fields = text.rpartition(b")")[2].decode("ascii").split()
    return None if fields[_STATE] in {"Z", "X"} else fields[_START_TIME]


def memory_of_session(leader: int) -> int:
    """Proportional memory of the processes of a session, in bytes; 0 if the system does not report it."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*") if Path("/proc/self/smaps_rollup").exists() else ():
        with suppress(OSError):
            if os.getsid(int(entry.name)) == leader:
                found = re.search(rb"^Pss:\s*(\d+) kB", Path(entry, "smaps_rollup").read_bytes(), re.MULTILINE)
                total += 0 if found is None else int(found[1]) << 10
    return total
