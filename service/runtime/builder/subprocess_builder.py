"""The control plane's side: a warm builder process, kept alive, and requests to it."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from epochal.errors import EnvironmentProblem
from epochal.service.domain.building import AS_EVER, FOR_WARM, ONCE, BuildRequest, suits_warm
from epochal.service.domain.ports import Meanwhile, SpareFigures
from epochal.service.runtime.builder.asking import AskingBuilder
from epochal.service.runtime.isolation import ProcessUser, identity_of
from epochal.service.runtime.launchers.local import driver_environment, project_secrets
from epochal.service.runtime.launchers.processes import memory_of_session
from epochal.wire.internal_api import LARGEST_ANSWER

log = logging.getLogger("epochal.builder")

_GRACE_SECONDS = 2.0
_LOOK_SECONDS = 0.5
"""Interval between checks whether the caller still waits."""
_READ_BYTES = 1 << 16


class SubprocessBuilder(AskingBuilder):
    """A :class:`~epochal.service.domain.ports.Builder`. Requests run at the same time, each in a separate child."""

    def __init__(
        self,
        user: ProcessUser | None = None,
        home: Path | None = None,
        warm: int = 0,
        once: bool = False,
        variables: Mapping[str, str] = {},
    ) -> None:
        """``user``: the user of the builder process, with ``home`` as its home and working folder. ``warm``: number of
        children that have Spark started. ``once``: start them now, and do not replace them. ``variables``: variables
        for the object store, which trials and rekeys use."""
        self._warm = warm
        self._arguments = (str(warm), ONCE) if once else (str(warm),)
        self._variables = dict(variables)
        self._states: list[tuple[int, bool]] = []
        self._said = b""
        self._user = user
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = threading.Lock()
        self._closed = False

    def open(self) -> None:
        """Start the warm process; it is ready a second or two later, and requests wait for it."""
        with self._lock:
            self._start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._control is not None:
                self._control.close()  # ends the process
            if self._process is not None:
                try:
                    self._process.wait(timeout=_GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()

    @property
    def spares(self) -> SpareFigures:
        with self._lock, suppress(OSError):
            if self._control is not None:
                *lines, self._said = (self._said + self._control.recv(1 << 20, socket.MSG_DONTWAIT)).split(b"\n")
                self._states = json.loads(lines[-1]) if lines else self._states
        ready = sum(is_ready for _, is_ready in self._states)
        return SpareFigures(
            limit=self._warm,
            ready=ready,
            warming=len(self._states) - ready,
            bytes=sum(memory_of_session(process) for process, _ in self._states),
        )

    def exchange(self, project: str, request: BuildRequest, meanwhile: Meanwhile) -> bytes:
        """The child's answer; empty when it ended without one. The child ends with the connection."""
        request = request.model_copy(update={"secrets": project_secrets(os.environ, project)})
        ours, theirs = socket.socketpair()
        with ours:
            try:
                self._send(theirs, FOR_WARM if suits_warm(request) else AS_EVER)
            finally:
                theirs.close()
            # The warm process may still be starting, which its first request waits for.
            patience = request.seconds + 30.0
            deadline = time.monotonic() + patience
            ours.settimeout(patience)
            parts, size = [], 0
            try:
                ours.sendall(request.model_dump_json().encode() + b"\n")
                ours.settimeout(_LOOK_SECONDS)
                while part := _received(ours, deadline, meanwhile):
                    parts.append(part)
                    size += len(part)
                    if size > LARGEST_ANSWER:
                        return b""
            except (TimeoutError, ConnectionError):
                return b""
            return b"".join(parts)

    def _send(self, connection: socket.socket, kind: bytes) -> None:
        """Hand the connection to the warm process, or to a new one if it has terminated."""
        with self._lock:
            for _ in range(2):
                if self._process is None or self._process.poll() is not None:
                    self._start()
                assert self._control is not None
                try:
                    socket.send_fds(self._control, [kind], [connection.fileno()])
                    return
                except OSError as error:
                    log.warning("the builder process has terminated (%s); starting another", error)
                    assert self._process is not None
                    self._process.kill()
                    self._process.wait()
        raise EnvironmentProblem("The builder process does not stay alive; see the control plane's log.")

    def _start(self) -> None:
        if self._closed:
            raise EnvironmentProblem("The control plane is closing.")
        if self._control is not None:
            self._control.close()
        ours, theirs = socket.socketpair()
        self._control, self._states, self._said = ours, [], b""
        environment = self._variables | driver_environment(os.environ, None)
        if self._user is not None and self._home is not None:
            environment = self._user.environment(environment, self._home)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "epochal.service.runtime.builder", *self._arguments],
                stdin=theirs.fileno(),
                # Output of authors' code during a build is discarded.
                stdout=subprocess.DEVNULL,
                env=environment,
                cwd=None if self._user is None else self._home,
                start_new_session=True,
                **identity_of(self._user),
            )


def _received(connection: socket.socket, deadline: float, meanwhile: Meanwhile) -> bytes:
    """Raises ``TimeoutError`` at the deadline, and what ``meanwhile`` raises."""
    while True:
        meanwhile()
        try:
            return connection.recv(_READ_BYTES)
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise
