"""A server as a child process: log, readiness check, and termination together with its child processes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from epochal.errors import EnvironmentProblem

LOOPBACK = "127.0.0.1"
PORTS: Final = range(10_000, 30_000)
"""Below the ports that operating systems choose for connections and Kubernetes for services: one of those can be taken
between the check and the start of a server."""
ATTEMPTS: Final = 1_000
_returned: set[int] = set()


class ServerUnavailable(EnvironmentProblem):
    """A server that a test needs is not available on this machine."""

    slug = "server-unavailable"


def free_port() -> int:
    """Return a loopback port of ``PORTS`` that was free at the time of the call, a different one in each call.

    Processes choose at random, so that two of them rarely choose the same one. Raises ``ServerUnavailable`` after
    ``ATTEMPTS`` ports that are not free.
    """
    choose = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = choose.choice(PORTS)
        if port in _returned:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            _returned.add(port)
            return port
    raise ServerUnavailable(
        f"{ATTEMPTS} ports from {PORTS[0]} to {PORTS[-1]} are in use. Stop servers on this machine."
    )


def accepts(port: int) -> bool:
    """Check whether a process accepts connections on this loopback port."""
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


class ServerProcess:
    """One process in a separate session, so that :meth:`stop` ends it and its children and nothing else.

    ``user``: the numeric user id to run as, which only root can choose; ``None`` keeps the caller's.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        user: int | None = None,
    ) -> None:
        self.name = name
        self.log = log
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [str(part) for part in command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environment) if environment is not None else None,
                    cwd=directory,
                    start_new_session=True,
                    user=user,
                    group=user,
                    extra_groups=None if user is None else [],
                )
        except OSError as error:
            raise ServerUnavailable(f"{name} could not be started: {error}.") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of an ended process; negative is the number of the signal that killed it."""
        return self._process.poll()

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until ``ready()`` is true. Raises ``ServerUnavailable`` with the end of the log after a failure or a
        timeout."""
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            if ready():
                return
            now = time.monotonic()
            if not self.running:
                raise ServerUnavailable(f"{self.name} ended while starting. The end of its log: {self.log_end()}")
            if now > deadline:
                raise ServerUnavailable(f"{self.name} did not answer within {seconds:.0f} s. Its log: {self.log_end()}")
            time.sleep(max(0.05, 4 * (now - began)))  # polling must not slow down the server

    def wait_for_end(self, seconds: float) -> None:
        """Wait until the process has ended with any exit code. Raises ``ServerUnavailable`` after the timeout."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ServerUnavailable(f"{self.name} did not end within {seconds:.0f} s.") from None

    def wait_for_success(self, seconds: float) -> None:
        """Wait until the process has ended with exit code 0. Otherwise raises ``ServerUnavailable`` with the end of
        the log."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            raise ServerUnavailable(
                f"{self.name} did not end within {seconds:.0f} s. Its log: {self.log_end()}"
            ) from None
        if code != 0:
            raise ServerUnavailable(f"{self.name} failed with exit code {code}. The end of its log: {self.log_end()}")

    def log_end(self, characters: int = 1500) -> str:
        return self.log.read_text(errors="replace")[-characters:]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, for example to kill or pause a server."""
        if self.running:
            self._process.send_signal(number)

    def stop(self, first: signal.Signals = signal.SIGTERM, seconds: float = 10) -> None:
        """Send the signal ``first``, wait, then kill the whole session of processes. Repeated calls are safe."""
        self.send(signal.SIGCONT)
        self.send(first)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
