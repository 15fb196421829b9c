"""Hints between processes that share a catalog: a change has happened, read the catalog now instead of within a second.

A hint may be lost, be duplicated, and come from a process that has terminated since; correctness must not depend on
hints.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from epochal.background.service import BackgroundService
from epochal.background.task import BackgroundTask
from epochal.service.catalog.engines import Notifications
from epochal.service.domain.events import EVERYTHING, Topics
from epochal.service.domain.identifiers import new_id

log = logging.getLogger("epochal.events")

COALESCED_SECONDS = 0.02
"""PostgreSQL commits transactions that notify one at a time: hints that arrive in this interval are sent together."""
CHECK_SECONDS = 10.0
RECONNECT_SECONDS = 1.0
_DATAGRAM_BYTES = 4096
_PATH_BYTES = 100
"""Maximum length of the path of a Unix socket."""

Heard = Callable[[Topics], None]


class Hints(Protocol):
    def open(self, heard: Heard) -> None:
        """Call ``heard`` with the messages of other processes."""

    def send(self, topics: Topics) -> None:
        """Send to all other processes. Returns quickly, never raises."""

    def close(self) -> None: ...


def hints_of(database_url: str, data: Path) -> Hints:
    """Hints between processes that share a PostgreSQL database, or a data folder."""
    return PostgresqlHints(database_url) if database_url.startswith("postgres") else LocalHints(data / "hints")


class LocalHints:
    """Datagrams between the processes of one machine: each has a socket in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"{os.getpid()}-{new_id()}"
        self._socket: socket.socket | None = None
        self._descriptor = -1
        self._task: BackgroundTask[None] | None = None

    def open(self, heard: Heard) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = os.open(self._folder, os.O_RDONLY)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(self._address(self._name))
        except OSError as error:
            log.warning("other processes are heard within a second only: no socket in %s: %s", self._folder, error)
            self.close()
            return
        listening = self._socket
        self._task = BackgroundTask("hints", lambda: self._receive(listening, heard))

    def send(self, topics: Topics) -> None:
        if self._socket is None:
            return
        message = ",".join(topics).encode()
        try:
            names = os.listdir(self._descriptor)
        except OSError:
            return
        for name in names:
            if name == self._name:
                continue
            try:
                self._socket.sendto(message, socket.MSG_DONTWAIT, self._address(name))
            except ConnectionRefusedError:
                with suppress(OSError):  # its process was killed
                    os.unlink(name, dir_fd=self._descriptor)
            except OSError:
                pass  # the receiver is slow; it reads the catalog within a second

    def close(self) -> None:
        unheard, self._socket = self._socket, None
        if unheard is not None:
            with suppress(OSError):
                unheard.sendto(b"", self._address(self._name))  # wakes the receiving thread
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._descriptor)
        if self._task is not None:
            self._task.wait(timeout=5)
        if unheard is not None:
            unheard.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _receive(self, listening: socket.socket, heard: Heard) -> None:
        while True:
            try:
                message = listening.recv(_DATAGRAM_BYTES)
            except OSError:
                return
            if self._socket is None:
                return
            heard(frozenset(message.decode(errors="replace").split(",")))

    def _address(self, name: str) -> str:
        """The socket's path, shortened if the folder's path is too long."""
        path = str(self._folder / name)
        return path if len(os.fsencode(path)) <= _PATH_BYTES else f"/proc/self/fd/{self._descriptor}/{name}"


class PostgresqlHints:
    """NOTIFY from a dedicated thread and connection, outside the transactions whose changes it announces."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._me = new_id()
        self._pending: set[str] = set()
        self._lock = threading.Lock()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._service: BackgroundService | None = None

    def open(self, heard: Heard) -> None:
        self._service = BackgroundService("hints", lambda: self._step(heard), RECONNECT_SECONDS, self._ring)
        self._service.start()

    def send(self, topics: Topics) -> None:
        with self._lock:
            self._pending |= topics
        self._ring()

    def close(self) -> None:
        if self._service is not None:
            self._service.stop()
        self._wake.close()
        self._woken.close()

    def _ring(self) -> None:
        with suppress(OSError):  # full: a wake-up is already pending
            self._wake.send(b"x")

    def _step(self, heard: Heard) -> None:
        """Use one connection until it is lost or the service stops."""
        assert self._service is not None
        notifications = Notifications(self._url)
        try:
            heard(EVERYTHING)  # covers the changes that were missed without a connection
            self._listen(notifications, heard, self._service)
        finally:
            notifications.close()

    def _listen(self, notifications: Notifications, heard: Heard, service: BackgroundService) -> None:
        sent_at, checked_at = 0.0, time.monotonic()
        # Not select(), which supports only the first 1,024 descriptors of a process.
        ready = select.poll()
        ready.register(notifications.fileno(), select.POLLIN)
        ready.register(self._woken.fileno(), select.POLLIN)
        while not service.stopping:
            moment = time.monotonic()
            with self._lock:
                due = bool(self._pending) and moment - sent_at >= COALESCED_SECONDS
                topics, self._pending = (self._pending, set()) if due else (set[str](), self._pending)
                waits = bool(self._pending)
            if topics:
                notifications.send(f"{self._me} {','.join(topics)}")
                sent_at = checked_at = moment
            elif moment - checked_at >= CHECK_SECONDS:
                notifications.check()
                checked_at = moment
            for payload in notifications.receive():
                sender, _, text = payload.partition(" ")
                if sender != self._me:
                    heard(frozenset(text.split(",")))
            ready.poll(1000 * (COALESCED_SECONDS if waits else 1.0))
            with suppress(BlockingIOError):
                self._woken.recv(_DATAGRAM_BYTES)
