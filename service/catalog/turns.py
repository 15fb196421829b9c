"""Whose turn it is to write: SQLite lets one writer in at a time, and those that wait come in no order at all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from epochal.errors import CatalogUnavailable


class WriteTurns:
    """Turns of this process's writers of one SQLite file: first come, first served, and urgent ones before others.

    SQLite's writers try again after growing pauses until one of them happens to find the file free. Among forty of
    them a heartbeat can wait for longer than a driver that is not heard is left alone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._urgent: deque[threading.Event] = deque()
        self._others: deque[threading.Event] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        with self._lock:
            return len(self._urgent) + len(self._others)

    @contextmanager
    def turn(self, urgent: bool, seconds: float) -> Iterator[None]:
        """Raises ``CatalogUnavailable`` when it does not come in time."""
        self._take(urgent, seconds)
        try:
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


_files: WeakValueDictionary[Path, WriteTurns] = WeakValueDictionary()
_files_lock = threading.Lock()


def turns_of(file: Path) -> WriteTurns:
    """The same for all that write one file in this process."""
    with _files_lock:
        return _files.setdefault(file.absolute(), WriteTurns())
