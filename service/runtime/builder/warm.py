"""Children of the builder that have Spark started before anybody asks: each answers one request, and ends.

As spare drivers they have no author's code, were trained in a session of their own, and end with whoever keeps them.
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
from dataclasses import dataclass, field
from typing import NoReturn

from epochal.driver.spare import Warmed, end_with_keeper
from epochal.service.runtime.launchers.processes import let_others_go_first
from epochal.service.runtime.machine import steady_seconds
from epochal.service.runtime.spare_schedule import Idleness, SpareSchedule, SpareTimes

log = logging.getLogger("epochal.builder")

READY, QUESTION, ANSWER, REQUEST = b"r", b"?", b".", b"!"
AFTER_DRIVERS = SpareTimes(quiet=15.0, busy=60.0)
"""It begins later than a spare driver does, so that one is ready first."""
FOR_ONE_REQUEST = SpareTimes(retired=math.inf, quiet=0.0, busy=0.0, pause=math.inf)
"""At once, and none after it; how long it is kept is decided by who keeps its pod."""
Serve = Callable[[int], NoReturn]
"""Answers the request of a connection, by its descriptor, and ends the process."""


def _with_spark() -> Warmed:
    # Not before: what it imports most children need nothing of.
    from epochal.driver.training import analysed

    return analysed()


@dataclass(eq=False)
class WarmChild:
    process: int
    socket: socket.socket
    is_ready: bool = False
    begun_at: float = field(default_factory=steady_seconds)


class WarmChildren:
    def __init__(
        self,
        number: int,
        serve: Serve,
        times: SpareTimes = AFTER_DRIVERS,
        get_ready: Callable[[], Warmed] = _with_spark,
    ) -> None:
        self._number = number
        self._serve = serve
        self._times = times
        self._get_ready = get_ready
        self._children: list[WarmChild] = []
        self._schedule = SpareSchedule(times, Idleness().is_quiet)

    def take(self, descriptor: int) -> bool:
        """Hand a request's connection to one that is ready and answers; ``False``: there is none."""
        self._schedule.asked_for()
        self.hear()
        for child in [child for child in self._children if child.is_ready]:
            self._children.remove(child)
            with child.socket, suppress(OSError):
                child.socket.settimeout(self._times.answer)
                child.socket.sendall(QUESTION)
                if child.socket.recv(1) == ANSWER:
                    socket.send_fds(child.socket, [REQUEST], [descriptor])
                    return True
            log.warning("a warm builder (process %d) does not answer, and is replaced", child.process)
            _kill(child)
        return False

    def look(self, before_fork: Callable[[], None]) -> None:
        """What has ended or is too old goes, and another is begun once it is quiet. ``before_fork``: of its own, in a
        new child."""
        self.hear()
        for child in list(self._children):
            if self._schedule.why_over(steady_seconds() - child.begun_at, child.is_ready) is not None:
                self._children.remove(child)
                child.socket.close()  # which it ends at
        if len(self._children) < self._number and self._schedule.may_begin():
            self._schedule.begun()
            self._begin(before_fork)

    @property
    def states(self) -> list[tuple[int, bool]]:
        """The process of each, and whether it is ready."""
        return [(child.process, child.is_ready) for child in self._children]

    def forget(self) -> None:
        """In another child, where an author's code will run: none of these is to be reached from there."""
        for child in self._children:
            child.socket.close()

    def hear(self) -> None:
        """Who is ready, who has ended."""
        for child in list(self._children):
            try:
                said = child.socket.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                said = b""
            child.is_ready = said == READY
            if child.is_ready:
                self._schedule.became_ready()
            if not said:
                self._children.remove(child)
                child.socket.close()
                log.warning("a warm builder (process %d) has ended by itself", child.process)

    def _begin(self, before_fork: Callable[[], None]) -> None:
        ours, theirs = socket.socketpair()
        process = os.fork()
        if process == 0:
            before_fork()
            self.forget()
            ours.close()
            _live(theirs, self._serve, self._get_ready)
        theirs.close()
        self._children.append(WarmChild(process, ours))


def _live(control: socket.socket, serve: Serve, get_ready: Callable[[], Warmed]) -> NoReturn:
    """In the child."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    over = threading.Event()
    end_with_keeper(control, over)
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


def _kill(child: WarmChild) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process, signal.SIGKILL)
