"""Whose turn it is to write: SQLite lets one writer in at a time, and those that wait come in no order at all."""

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
"""So long at most another process's urgent writers go first, one after the other."""
_LOOK_SECONDS = 0.001


class WriteTurns:
    """Turns of this process's writers of one SQLite file: first come, first served, and urgent ones before others.

    SQLite's writers try again after growing pauses until one of them happens to find the file free. Among forty of
    them a heartbeat can wait for longer than a driver that is not heard is left alone.

    What answers drivers is another process than what answers everybody else. So an urgent writer whose turn it is here
    says so to others by a lock on ``{file}-turn`` until it has written, and other writers stand back for it.
    """

    def __init__(self, file: Path) -> None:
        self._urgency = _Urgency(file.with_name(file.name + "-turn"))
        self._lock = threading.Lock()
        self._taken = False
        self._urgent: deque[threading.Event] = deque()
        self._others: deque[threading.Event] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        with self._lock:
            return len(self._urgent) + len(self._others)

    @property
    def taken(self) -> bool:
        """Whether it is somebody's turn."""
        with self._lock:
            return self._taken

    @contextmanager
    def turn(self, urgent: bool, seconds: float) -> Iterator[None]:
        """Raises ``CatalogUnavailable`` when it does not come in time."""
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
    """Shown to other processes. Called by one thread at a time: the one whose turn it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        descriptor = self._open()
        with suppress(BlockingIOError):  # held exclusively for a moment at most: not worth a wait that could be long
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def stand_back(self) -> None:
        """Until no other process shows urgency, but not for ever: one that was paused may show it for hours."""
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
        """Kept open with the turns, for as long as the process writes the file."""
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise CatalogFull(
                        f"The catalog cannot be written: no space is left for {self._path}. Free some space."
                    ) from error
                raise EnvironmentProblem(
                    f"{self._path}, by which writers of the catalog take turns, cannot be opened: {error.strerror}. "
                    "Let the control plane's user write to the catalog's folder."
                ) from error
        return self._descriptor

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


_files: WeakValueDictionary[Path, WriteTurns] = WeakValueDictionary()
_files_lock = threading.Lock()


def turns_of(file: Path) -> WriteTurns:
    """The same for all that write one file in this process."""
    with _files_lock:
        return _files.setdefault(file.absolute(), WriteTurns(file.absolute()))
