"""Notification of the end of processes of this machine, instead of polling."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from epochal.background.task import BackgroundTask


class ProcessEnds:
    """Calls ``tell``, from a separate thread, when a process that it watches has ended.

    It does not name the process, and does nothing if the system has no process descriptors (Linux has them since 5.3):
    notifications are hints, and receivers also check periodically.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._watched: dict[int, int] = {}
        """Descriptors, keyed by process id."""
        self._lock = threading.Lock()
        self._ends: select.epoll | None = None
        self._closing: int | None = None

    def watch(self, process: int) -> None:
        """Idempotent. Has no effect for a process that has ended."""
        with self._lock:
            if process in self._watched or not hasattr(os, "pidfd_open"):
                return
            try:
                descriptor = os.pidfd_open(process)
            except OSError:
                return
            if self._ends is None:
                self._ends = self._begun()
            self._watched[process] = descriptor
            self._ends.register(descriptor, select.EPOLLIN)

    def close(self) -> None:
        with self._lock:
            if self._closing is not None:
                os.close(self._closing)
            self._closing = None

    def _begun(self) -> select.epoll:
        ends = select.epoll()
        closed, self._closing = os.pipe()
        ends.register(closed, 0)  # a hang-up is always reported
        BackgroundTask("process-ends", lambda: self._run(ends, closed))
        return ends

    def _run(self, ends: select.epoll, closed: int) -> None:
        while True:
            ended = {descriptor for descriptor, _ in ends.poll()}
            with self._lock:
                if closed in ended:
                    self._ends, ended = None, {closed, *self._watched.values()}
                    ends.close()
                for descriptor in ended:
                    os.close(descriptor)  # which removes it from the poll set
                self._watched = {process: own for process, own in self._watched.items() if own not in ended}
            if closed in ended:
                return
            self._tell()
