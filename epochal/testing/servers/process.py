"""A server as a child process: its log, the wait until it answers, and its end, together with whatever it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epochal.errors import EnvironmentProblem

LOOPBACK = "127.0.0.1"


class ServerUnavailable(EnvironmentProblem):
    """A server that a test needs cannot be had on this machine."""

    slug = "server-unavailable"


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Does something accept connections on this loopback port?"""
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


class ServerProcess:
    """One process in a session of its own, so that it can be ended with everything below it and nothing else.

    ``user`` is a numeric user id to run as (only root can choose one); ``None`` keeps the caller's.
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

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return once ``ready()`` holds. Raises ``ServerUnavailable`` with the log's end otherwise."""
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
            time.sleep(max(0.05, 4 * (now - began)))  # to ask must not take the time of what is waited for

    def wait_for_end(self, seconds: float) -> None:
        """Return once it has ended, however. Raises ``ServerUnavailable`` when it does not."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ServerUnavailable(f"{self.name} did not end within {seconds:.0f} s.") from None

    def wait_for_success(self, seconds: float) -> None:
        """Return once it ended with exit code 0. Raises ``ServerUnavailable`` with the log's end otherwise."""
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
        """Send a signal to the process alone: to kill or pause a server on purpose."""
        if self.running:
            self._process.send_signal(number)

    def stop(self, first: signal.Signals = signal.SIGTERM, seconds: float = 10) -> None:
        """Ask, wait, then end the whole session of processes. Safe to call again."""
        self.send(signal.SIGCONT)
        self.send(first)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
