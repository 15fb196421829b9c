"""Processes of one node: whoever keeps them replaces those that die or hang, and they end with whoever keeps them.

A process is given its orders as one line of JSON on standard input, and ends when that ends: when it is asked to, and
also when its keeper was killed. On standard output it says, in one line, that it is ready or why it cannot be; and from
then on, by an empty line each second, that it still works.
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
"""One that lived for so long is replaced at once."""
READY_SECONDS = 120.0
STOP_SECONDS = 10.0
BEAT_SECONDS = 1.0
"""Between two signs of life."""
HUNG_SECONDS = 20.0
"""One that gave no sign of life for so long is killed, and replaced."""


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
        """``orders``: JSON in one line. ``descriptors``: open files that it inherits."""
        self.name = name
        self._hung_seconds = hung_seconds
        self._silent_seconds = math.inf
        # Its own folder's modules are not to be found before Epochal's (-P).
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
        """Its id, while there is one."""
        return None if self._process is None else self._process.pid

    @property
    def silent_seconds(self) -> float:
        """Since its last sign of life, or less; infinite before it is ready."""
        return self._silent_seconds

    def start(self) -> None:
        self._task = BackgroundTask(self.name, self._run)

    def wait_until_ready(self) -> None:
        """For the first time. Raises the ``EpochalError`` that it gave as the reason why it cannot be."""
        if not self._said.wait(READY_SECONDS):
            raise EnvironmentProblem(f"The {self.name} of this node was not ready after {READY_SECONDS:.0f} s.")
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ask it to end. Returns at once."""
        with self._replacing:
            self._closing.set()
            if self._process is not None:
                _end_input(self._process)

    def wait_until_stopped(self) -> None:
        """After :meth:`stop`; what does not end in time is killed."""
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
        with suppress(BrokenPipeError):  # it has ended already, which is seen
            process.stdin.write(self._orders + b"\n")
            process.stdin.flush()
        return process

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Until its output ends. Silence is counted in looks, not by the time that has passed: while this process was
        stopped itself, or the whole machine, nothing was to be heard."""
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
                    self._hear(line)
                    ready = True
                silent = 0.0
            else:
                silent += min(time.monotonic() - began, 2 * BEAT_SECONDS)
            if ready:
                self._silent_seconds = silent
            if silent >= (self._hung_seconds if ready else READY_SECONDS):
                log.error("the %s (process %d) hangs: no sign of life for %.0f s", self.name, process.pid, silent)
                process.kill()
                silent = 0.0

    def _hear(self, line: bytes) -> None:
        failure = json.loads(line)["failure"]
        if failure is not None:
            error = (error_class(failure["slug"]) or EpochalError)(failure["message"])
            log.error("the %s cannot work: %s", self.name, error.message)
            if not self._said.is_set():
                self._failure = error
                self._closing.set()
        self._said.set()


def stop_all(processes: Sequence[KeptProcess]) -> None:
    """At the same time; returns when all have ended."""
    for process in processes:
        process.stop()
    for process in processes:
        process.wait_until_stopped()


class Keeper:
    """The other end, in a process that is kept. Made before anything writes to standard output."""

    def __init__(self) -> None:
        # Ctrl-C reaches all processes of a terminal; whoever keeps this one says when it is its turn.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._out = os.dup(1)
        os.set_blocking(self._out, False)  # a keeper that is stopped does not read
        os.dup2(2, 1)

    def orders(self) -> bytes:
        """Empty when the keeper has ended before it gave any."""
        return sys.stdin.buffer.readline()

    def ready(self) -> None:
        self._say(None)

    def failed(self, error: EpochalError) -> None:
        self._say({"slug": error.slug, "message": error.message})

    def beat(self) -> None:
        """To be called every ``BEAT_SECONDS`` once it is ready, by the thread without which nothing else works."""
        self._write(b"\n")

    def when_over(self, stop: Callable[[], None]) -> None:
        """Call ``stop``, from another thread, when this process shall end."""
        BackgroundTask("keeper", lambda: self._wait(stop))

    def _wait(self, stop: Callable[[], None]) -> None:
        # The descriptor itself: a thread that waits in sys.stdin has its lock, which the interpreter needs at its end.
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
