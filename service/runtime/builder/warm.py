"""Children of the builder that have Spark started before a request arrives. Each answers one request and ends.

Like warm drivers they hold no author's code, were trained in a separate session, and end with the builder.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from epochal.driver.spare import Warmed, end_with_parent
from epochal.service.runtime.launchers.processes import let_others_go_first
from epochal.service.runtime.warm_pool import Idleness, PoolTimes, WarmLauncher, WarmPool

log = logging.getLogger("epochal.builder")

READY, QUESTION, ANSWER, REQUEST = b"r", b"?", b".", b"!"
AFTER_DRIVERS = PoolTimes(quiet=15.0, busy=60.0)
"""Starts later than a warm driver, so that the driver is ready first."""
FOR_ONE_REQUEST = PoolTimes(retired=math.inf, quiet=0.0, busy=0.0, pause=math.inf)
"""Starts immediately, and only once. The pool of pods limits its age."""
_KEY = "spark"
Serve = Callable[[int], NoReturn]
"""Answers the request of a connection, by its descriptor, and ends the process."""


def _with_spark() -> Warmed:
    # Imported lazily: most children do not need these modules.
    from epochal.driver.training import analysed

    return analysed()


@dataclass(eq=False)
class WarmChild:
    process: int
    socket: socket.socket
    is_ready: bool = False
    has_ended: bool = False

    def __str__(self) -> str:
        return f"process {self.process}"


class ChildLauncher(WarmLauncher[str, WarmChild]):
    """Forks children of this process. All of them have one key."""

    kind = "builder"
    hands_out_unready = False

    def __init__(self, serve: Serve, get_ready: Callable[[], Warmed], before_fork: Callable[[], None]) -> None:
        """``before_fork``: called in a new child, to close what it must not reach."""
        self._serve = serve
        self._get_ready = get_ready
        self._before_fork = before_fork

    def start(self, key: str) -> WarmChild:
        ours, theirs = socket.socketpair()
        process = os.fork()
        if process == 0:
            self._before_fork()
            ours.close()
            _live(theirs, self._serve, self._get_ready)
        theirs.close()
        return WarmChild(process, ours)

    def is_ready(self, worker: WarmChild) -> bool:
        self._receive(worker)
        return worker.is_ready

    def why_ended(self, worker: WarmChild) -> str | None:
        self._receive(worker)
        return "see the log of the builder" if worker.has_ended else None

    def stop(self, worker: WarmChild, kill: bool = False) -> None:
        worker.socket.close()  # the child ends then
        if kill:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.process, signal.SIGKILL)

    def _receive(self, child: WarmChild) -> None:
        try:
            received = child.socket.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        child.is_ready = child.is_ready or received == READY
        child.has_ended = child.has_ended or not received


class WarmChildren:
    """The pool of a builder process, which takes the steps itself: only a process of one thread may fork."""

    def __init__(
        self,
        number: int,
        serve: Serve,
        before_fork: Callable[[], None],
        times: PoolTimes = AFTER_DRIVERS,
        get_ready: Callable[[], Warmed] = _with_spark,
    ) -> None:
        """``before_fork``: called in a new child, to close what it must not reach."""

        def close_in_child() -> None:
            before_fork()
            self.forget()

        launcher = ChildLauncher(serve, get_ready, close_in_child)
        is_quiet = Idleness().is_quiet
        self._pool = WarmPool(launcher, number, lambda: _KEY, times, is_quiet, immediately=False)

    def take(self, descriptor: int) -> bool:
        """Hand a request's connection to a child that is ready and answers; ``False`` if there is none."""
        return self._pool.take(_KEY, lambda child: self._handed_over(child, descriptor)) is not None

    def step(self) -> None:
        self._pool.step()

    @property
    def states(self) -> list[tuple[int, bool]]:
        """The process of each child, and whether it is ready."""
        return [(child.process, is_ready) for child, is_ready in self._pool.readiness]

    def forget(self) -> None:
        """Close the sockets of all children, in another child: authors' code there must not reach them."""
        for child in self._pool.workers:
            child.socket.close()

    def _handed_over(self, child: WarmChild, descriptor: int) -> WarmChild | None:
        with suppress(OSError):
            child.socket.settimeout(self._pool.times.answer)
            child.socket.sendall(QUESTION)
            if child.socket.recv(1) == ANSWER:
                socket.send_fds(child.socket, [REQUEST], [descriptor])
                child.socket.close()
                return child
        return None


def _live(control: socket.socket, serve: Serve, get_ready: Callable[[], Warmed]) -> NoReturn:
    """Main function of a warm child."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    over = threading.Event()
    end_with_parent(control, over)
    try:
        let_others_go_first(os.getpid())
        warmed = get_ready()
        let_others_go_first(os.getpid(), False)
        control.sendall(READY)
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if descriptors:
                over.set()
                serve(descriptors[0])
            if not message:
                warmed.stop()
                os._exit(0)
            warmed.check()
            control.sendall(ANSWER)
    except BaseException:
        log.exception("a warm builder ends")
    os._exit(1)
