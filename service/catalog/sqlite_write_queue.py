"""Queue of write transactions on a SQLite catalog. SQLite admits one writer at a time and has no fair order."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

from epochal.errors import CatalogFull, CatalogUnavailable, EnvironmentProblem

STAND_BACK_SECONDS = 0.1
"""Maximum time for which a writer yields to urgent writers of another process."""
_LOOK_SECONDS = 0.001


class WriteQueue:
    """Queue of this process's writers of one SQLite file: first come, first served, with urgent writers before others.

    SQLite's writers retry after growing pauses until the file happens to be free. Among forty writers a heartbeat can
    wait for longer than the heartbeat timeout.

    Drivers are served by another process than other clients. An urgent writer therefore holds a lock on ``{file}-turn``
    while it writes, and writers of other processes yield to it.
    """

    def __init__(self, file: Path) -> None:
        self._urgency = _Urgency(file.with_name(file.name + "-turn"))
        self._lock = threading.Lock()
        self._taken = False
        self._urgent: deque[threading.Event] = deque()
        self._others: deque[threading.Event] = deque()

    @property
    def waiting(self) -> int:
        """Number of waiting writers."""
        with self._lock:
            return len(self._urgent) + len(self._others)

    @property
    def taken(self) -> bool:
        """Return whether a writer is active."""
        with self._lock:
            return self._taken

    @contextmanager
    def turn(self, urgent: bool, seconds: float) -> Iterator[None]:
        """Raises ``CatalogUnavailable`` after ``seconds``."""
        self._take(urgent, seconds)
        try:
            if urgent:
                with self._urgency.shown():
                    yield
            else:
                self._urgency.stand_back()
                yield
        finally:
            self._pass_on()

    def _take(self, urgent: bool, seconds: float) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            queue = self._urgent if urgent else self._others
            turn = threading.Event()
            queue.append(turn)
        if turn.wait(seconds):
            return
        with self._lock:
            if turn in queue:
                queue.remove(turn)
                raise CatalogUnavailable(f"The catalog was being written for {seconds:g} s.")

    def _pass_on(self) -> None:
        with self._lock:
            queue = self._urgent or self._others
            if queue:
                queue.popleft().set()
            else:
                self._taken = False


class _Urgency:
    """A lock that tells other processes of urgent writers. Only the active writer's thread calls it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        descriptor = self._open()
        with suppress(BlockingIOError):  # another process holds it exclusively only for a moment
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def stand_back(self) -> None:
        """Wait until no other process has urgent writers, for a limited time: a suspended process could hold its lock
        for hours."""
        descriptor = self._open()
        deadline = time.monotonic() + STAND_BACK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return
                time.sleep(_LOOK_SECONDS)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                return

    def _open(self) -> int:
        """The descriptor is kept open with the queue."""
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise CatalogFull(
                        f"The catalog cannot be written: no space is left for {self._path}. Free some space."
                    ) from error
                raise EnvironmentProblem(
                    f"{self._path}, the lock file of the catalog's writers, cannot be opened: {error.strerror}. "
                    "Grant the control plane's user write access to the catalog's folder."
                ) from error
        return self._descriptor

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


_files: WeakValueDictionary[Path, WriteQueue] = WeakValueDictionary()
_files_lock = threading.Lock()


def write_queue_of(file: Path) -> WriteQueue:
    """The queue of a file, shared within this process."""
    with _files_lock:
        return _files.setdefault(file.absolute(), WriteQueue(file.absolute()))
