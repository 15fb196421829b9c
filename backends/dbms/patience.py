"""Timeout for answers of PostgreSQL, whose client waits indefinitely while the connection appears to be alive.

TCP detects a cut network. It does not detect a stopped server, or a middlebox that accepts data and forwards none: the
connection must then be closed from this side, and the outcome looked up.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from epochal.background.task import BackgroundTask

ANSWER_SECONDS = 120.0
"""Timeout for one statement; a statement applies at most one chunk of rows."""

Item = TypeVar("Item")


class Patience:
    """Closes a connection that has been silent for too long; the caller waiting for its answer gets the client's
    error."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._over = threading.Event()
        # A duplicate descriptor: the connection's own may be closed and reused at any time.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self.renew()
        BackgroundTask("epochal-patience", self._watch)

    def renew(self) -> None:
        """Restart the timeout after an answer."""
        self._deadline = time.monotonic() + self._seconds

    def renewed_by(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items, and restart the timeout before each and after the last."""
        for item in items:
            self.renew()
            yield item
        self.renew()

    def end(self) -> None:
        with self._lock:
            self._over.set()
            self._socket.close()

    def _watch(self) -> None:
        while not self._over.wait(max(0.0, self._deadline - time.monotonic())):
            with self._lock:
                if time.monotonic() >= self._deadline and not self._over.is_set():
                    with suppress(OSError):
                        self._socket.shutdown(socket.SHUT_RDWR)
                    return


@contextmanager
def patience(connection: Any) -> Iterator[Patience]:
    """Limit the wait for an answer on a connection of psycopg to ``ANSWER_SECONDS`` within the block."""
    watching = Patience(connection, ANSWER_SECONDS)
    try:
        yield watching
    finally:
        watching.end()
