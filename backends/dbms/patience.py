"""How long an answer of PostgreSQL's is waited for. Its client would wait for ever while the connection seems to live.

A network that is cut is noticed by TCP itself. Not so a server that is stopped, or something in between that takes
everything and passes nothing on: then the connection has to be ended from this side, and the outcome looked up.
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
"""For one statement; one of them applies at most one chunk of rows."""

Item = TypeVar("Item")


class Patience:
    """Ends a connection that has been silent for too long: whoever waits for its answer gets the client's error."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._over = threading.Event()
        # A descriptor of its own: the connection's may be closed, and given to another, at any time.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self.renew()
        BackgroundTask("epochal-patience", self._watch)

    def renew(self) -> None:
        """Something was heard."""
        self._deadline = time.monotonic() + self._seconds

    def renewed_by(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items, each of which is asked for when the one before has been dealt with."""
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
    """Within the block, no answer on a connection of psycopg's is waited for longer than ``ANSWER_SECONDS``."""
    watching = Patience(connection, ANSWER_SECONDS)
    try:
        yield watching
    finally:
        watching.end()
