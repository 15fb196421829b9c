"""Supervised child processes of a node: the parent replaces children that die or hang, and children end with their
parent.

A child receives its orders as one line of JSON on standard input, and ends when standard input is closed: on request,
and also when its parent was killed. On standard output it reports in one line that it is ready, or why it cannot start;
after that it writes an empty line each second as a heartbeat.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from epochal.background.task import BackgroundTask
from epochal.errors import EnvironmentProblem, EpochalError, error_class

log = logging.getLogger("epochal.processes")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
STEADY_SECONDS = 10.0
"""Minimum lifetime after which a process that ends is replaced without a growing pause."""
READY_SECONDS = 120.0
STOP_SECONDS = 10.0
BEAT_SECONDS = 1.0
"""Interval between heartbeats."""
HUNG_SECONDS = 20.0
"""Timeout for heartbeats: a process without one is killed and replaced."""


class KeptProcess:
    def __init__(
        self,
        name: str,
        module: str,
        orders: bytes,
        descriptors: Sequence[int] = (),
        variables: Mapping[str, str] = {},
        hung_seconds: float = HUNG_SECONDS,
    ) -> None:
        """``orders``: JSON in one line. ``descriptors``: open files that the process inherits."""
        self.name = name
        self._hung_seconds = hung_seconds
        self._silent_seconds = math.inf
        # -P: modules in the working directory must not shadow Epochal's.
        self._command = [sys.executable, "-P", "-m", module]
        self._orders = orders
        self._descriptors = tuple(descriptors)
        self._environment = {**os.environ, **variables}
        self._process: subprocess.Popen[bytes] | None = None
        self._said = threading.Event()
        self._failure: EpochalError | None = None
        self._closing = threading.Event()
        self._replacing = threading.Lock()
        self._task: BackgroundTask[None] | None = None

    @property
    def process(self) -> int | None:
        """The process id; ``None`` before the first start."""
        return None if self._process is None else self._process.pid

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last heartbeat, or less; infinite before the process is ready."""
        return self._silent_seconds

    def start(self) -> None:
        self._task = BackgroundTask(self.name, self._run)

    def wait_until_ready(self) -> None:
        """Wait for the first start. Raises the ``EpochalError`` that the process reports as the reason why it cannot
        start."""
        if not self._said.wait(READY_SECONDS):
            raise EnvironmentProblem(f"The {self.name} of this node was not ready after {READY_SECONDS:.0f} s.")
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Request the process to end. Returns immediately."""
        with self._replacing:
            self._closing.set()
            if self._process is not None:
                _end_input(self._process)

    def wait_until_stopped(self) -> None:
        """Wait after :meth:`stop`; a process that does not end in time is killed."""
        if self._process is None:
            return
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("the %s (process %d) did not end in time and is killed", self.name, self._process.pid)
            self._process.kill()
        if self._task is not None:
            self._task.wait(STOP_SECONDS)

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            began = time.monotonic()
            with self._replacing:
                if self._closing.is_set():
                    return
                process = self._process = self._spawn()
            self._follow(process)
            self._silent_seconds = math.inf
            code = process.wait()
            _end_input(process)
            if self._closing.is_set():
                return
            if not self._said.is_set():
                self._failure = EnvironmentProblem(
                    f"The {self.name} of this node ended before it was ready: {_why(code)}."
                )
                self._said.set()
                return
            pause = FIRST_PAUSE_SECONDS if time.monotonic() - began > STEADY_SECONDS else pause
            log.error("the %s has ended (%s); starting another in %.1f s", self.name, _why(code), pause)
            if self._closing.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _spawn(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=self._descriptors,
            env=self._environment,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already; the caller detects that
            process.stdin.write(self._orders + b"\n")
            process.stdin.flush()
        return process

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Read the output until it ends. Silence is counted in polls, not in elapsed time: while this process or the
        whole machine was suspended, no heartbeat could arrive."""
        assert process.stdout is not None
        output = process.stdout.fileno()
        look = select.poll()
        look.register(output, select.POLLIN)
        rest, silent, ready = b"", 0.0, False
        while True:
            began = time.monotonic()
            if look.poll(BEAT_SECONDS * 1000):
                data = os.read(output, 1 << 16)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in filter(None, lines):
                    self._receive(line)
                    ready = True
                silent = 0.0
            else:
                silent += min(time.monotonic() - began, 2 * BEAT_SECONDS)
            if ready:
                self._silent_seconds = silent
            if silent >= (self._hung_seconds if ready else READY_SECONDS):
                log.error("the %s (process %d) hangs: no heartbeat for %.0f s", self.name, process.pid, silent)
                process.kill()
                silent = 0.0

    def _receive(self, line: bytes) -> None:
        failure = json.loads(line)["failure"]
        if failure is not None:
            error = (error_class(failure["slug"]) or EpochalError)(failure["message"])
            log.error("the %s cannot work: %s", self.name, error.message)
            if not self._said.is_set():
                self._failure = error
                self._closing.set()
        self._said.set()


def stop_all(processes: Sequence[KeptProcess]) -> None:
    """Stop processes concurrently; returns when all have ended."""
    for process in processes:
        process.stop()
    for process in processes:
        process.wait_until_stopped()


class ParentConnection:
    """The child's end of the connection to its parent. Created before anything is written to standard output."""

    def __init__(self) -> None:
        # Ctrl-C reaches all processes of a terminal; the parent decides when this one ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._out = os.dup(1)
        os.set_blocking(self._out, False)  # a parent that is suspended does not read
        os.dup2(2, 1)

    def orders(self) -> bytes:
        """The orders; empty if the parent ended before it sent any."""
        return sys.stdin.buffer.readline()

    def ready(self) -> None:
        self._say(None)

    def failed(self, error: EpochalError) -> None:
        self._say({"slug": error.slug, "message": error.message})

    def beat(self) -> None:
        """Send a heartbeat. Call it every ``BEAT_SECONDS`` once ready, from the thread on which all other work
        depends."""
        self._write(b"\n")

    def when_over(self, stop: Callable[[], None]) -> None:
        """Call ``stop``, from another thread, when this process must end."""
        BackgroundTask("parent", lambda: self._wait(stop))

    def _wait(self, stop: Callable[[], None]) -> None:
        # Reads the descriptor itself: a thread that waits in sys.stdin holds its lock, which the interpreter needs at
        # exit.
        while os.read(0, 1024):
            pass
        stop()

    def _say(self, failure: Mapping[str, str] | None) -> None:
        self._write(json.dumps({"failure": failure}).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._out, line)


def _end_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()


def _why(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
