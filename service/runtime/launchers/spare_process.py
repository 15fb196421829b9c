"""One spare driver, from the viewpoint of the control plane that has started it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from epochal.background.task import BackgroundTask
from epochal.driver.orders import SPARE_ANSWER, SPARE_QUESTION, DriverOrders, SpareOrders
from epochal.faults import declare
from epochal.service.domain.executions import DriverName
from epochal.service.runtime.launchers.processes import LocalProcess, let_others_go_first, memory_of_session
from epochal.service.runtime.logs.files import last_lines
from epochal.service.runtime.warm_pool import WarmLauncher

OFFERED = declare("W1.offered", "a warm driver is ready and can be taken")
CLAIMED = declare("W2.claimed", "a spare has the name of an attempt, and no orders")
HANDED_OVER = declare("W3.handed-over", "a spare has its orders; the catalog has no reference to the driver yet")

_DRIVER_NAME = re.compile(r"([A-Za-z0-9_.-]{1,80})-([0-9]{1,9})", re.ASCII)
_CLAIM_FILE = re.compile(r"[0-9a-f]{32}\.claim", re.ASCII)
_MOST_CLAIM_BYTES = 100
_MOST_ANSWER_BYTES = 1 << 16
SEND_SECONDS = 5.0
END_SECONDS = 30.0
"""Timeout for stopping Spark, which deletes its temporary files."""


@dataclass(frozen=True)
class SpareKey:
    """Settings fixed at the start of Spark. They determine the applications whose driver a spare can become."""

    master: str
    spark: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    user: int | None

    @property
    def in_one_process(self) -> bool:
        """``True`` for a local master. On a cluster, a spare would hold executors that applications need."""
        return self.master == "local" or self.master.startswith("local[")


@dataclass(frozen=True)
class SpareFiles:
    """Files of a spare: its working folder, its log, and the claim file that names its attempt."""

    folder: Path
    log: Path
    claim: Path

    @classmethod
    def of(cls, claim: Path) -> SpareFiles:
        return cls(claim.with_suffix(".work"), claim.with_suffix(".log"), claim)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in (self.log, self.claim):
            path.unlink(missing_ok=True)


def driver_name(text: str) -> DriverName | None:
    """Parse the name of a driver; ``None`` where ``text`` is not one. Authors' processes can show any text."""
    found = _DRIVER_NAME.fullmatch(text)
    return None if found is None else DriverName(found[1], int(found[2]))


def claimed_name(claim: Path, folder: Path) -> DriverName | None:
    """Return the name in the claim file of a spare; ``None`` where the file does not exist yet.

    The path comes from a command line that an author's process may have written. Only a claim file directly below
    ``folder`` is opened, without following a link and without waiting for a writer. Raises ``ValueError`` for any other
    path and for a file that is not a claim.
    """
    if claim.parent != folder or _CLAIM_FILE.fullmatch(claim.name) is None:
        raise ValueError(f"the claim file is not in {folder}")
    try:
        descriptor = os.open(claim, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"the claim file {claim.name} cannot be opened: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"the claim file {claim.name} is not a regular file")
        data = os.read(descriptor, _MOST_CLAIM_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the claim file {claim.name} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    name = driver_name(data.decode(errors="replace")) if len(data) <= _MOST_CLAIM_BYTES else None
    if name is None:
        raise ValueError(f"the claim file {claim.name} does not contain the name of a driver")
    return name


def _says_ready(line: bytes) -> bool:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and "seconds" in answer


@dataclass(eq=False)
class SpareProcess:
    key: SpareKey
    child: subprocess.Popen[bytes]
    process: LocalProcess
    socket: socket.socket
    files: SpareFiles
    is_ready: bool = False
    _received: bytes = b""

    def __str__(self) -> str:
        return str(self.process)

    @property
    def has_ended(self) -> bool:
        return self.child.poll() is not None

    def give(self, orders: SpareOrders) -> None:
        """Send the settings of Spark. A process that has ended is noticed later."""
        let_others_go_first(self.process.pid)
        with suppress(OSError):
            self._send(orders.model_dump_json().encode() + b"\n")

    def receive_answer(self) -> bool:
        """``True`` once the process has reported that it is ready."""
        with suppress(OSError):
            self._received += self.socket.recv(1 << 12, socket.MSG_DONTWAIT)
        if b"\n" in self._received or len(self._received) > _MOST_ANSWER_BYTES:
            self.is_ready, self._received = _says_ready(self._received.partition(b"\n")[0]), b""
        return self.is_ready

    def go_as_others(self) -> None:
        """Restore the normal priority, since a caller waits now. May take a second."""
        let_others_go_first(self.process.pid, False)

    def answers(self, seconds: float) -> bool:
        """``True`` if the process answers, or has not finished its start yet."""
        if self.has_ended or not self.is_ready:
            return not self.has_ended
        try:
            self._send(SPARE_QUESTION)
            self.socket.settimeout(seconds)
            return self.socket.recv(1 << 12).endswith(SPARE_ANSWER)
        except OSError:
            return False

    def become(self, name: DriverName, orders: DriverOrders, log: Path) -> bool:
        """Make it the driver of this attempt, which writes to ``log``.

        ``False``: it has no orders, and never will; it has ended, and another may be started in its place.
        """
        if not self.is_ready:
            self.go_as_others()
        try:
            os.link(self.files.log, log)
            self.files.log.unlink()
            draft = self.files.claim.with_suffix(".part")
            draft.write_text(str(name))
            draft.rename(self.files.claim)
            CLAIMED.hit()
            self._send(orders.model_dump_json().encode() + b"\n")
        except OSError:
            self.end(at_once=True)
            return False
        HANDED_OVER.hit()
        self.socket.close()
        return True

    def end(self, at_once: bool = False) -> None:
        """End the spare and delete its files.

        ``at_once``: return after its end; otherwise the spare shuts down in order, in the background.
        """
        self.socket.close()
        if at_once:
            self._wait(0)
        else:
            BackgroundTask("spare-ends", lambda: self._wait(END_SECONDS))

    def last_words(self) -> str:
        return last_lines(self.files.log, 5)

    def _wait(self, seconds: float) -> None:
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.signal_group(signal.SIGKILL)
            self.child.wait()
        self.files.remove()

    def _send(self, message: bytes) -> None:
        self.socket.settimeout(SEND_SECONDS)
        self.socket.sendall(message)


class ProcessLauncher(WarmLauncher[SpareKey, SpareProcess]):
    """Starts processes that become drivers. ``start_process`` starts one, without orders."""

    kind = "driver"

    def __init__(self, start_process: Callable[[SpareKey], SpareProcess]) -> None:
        self._start_process = start_process

    def start(self, key: SpareKey) -> SpareProcess:
        spare = self._start_process(key)
        spare.give(SpareOrders(master=key.master, spark=dict(key.spark)))
        return spare

    def is_ready(self, worker: SpareProcess) -> bool:
        return worker.receive_answer()

    def became_ready(self, worker: SpareProcess) -> None:
        worker.go_as_others()
        OFFERED.hit()

    def why_ended(self, worker: SpareProcess) -> str | None:
        return (worker.last_words() or "no output") if worker.has_ended else None

    def stop(self, worker: SpareProcess, kill: bool = False) -> None:
        worker.end(at_once=kill)

    def memory_bytes(self, worker: SpareProcess) -> int:
        return memory_of_session(worker.process.pid)
