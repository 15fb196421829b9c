"""A simulated clock, and threads that run one at a time in a deterministic order."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable


class Killed(BaseException):
    """Raised in a waiting thread of a killed process. No code under test catches it."""


class Scheduler:
    """Runs calls in the order of their times. Calls take no simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    def at(self, time: float, call: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._due, (max(time, self.now), self._order, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now + seconds, call)

    def run(self, until: float, check: Callable[[], None]) -> None:
        """Run the calls due until ``until``, and ``check`` after each of them."""
        while self._due and self._due[0][0] <= until:
            self.now, _, call = heapq.heappop(self._due)
            call()
            check()
        self.now = until


class Actor:
    """A thread of a simulated process. While it runs, until it sleeps, all other actors wait."""

    def __init__(self, scheduler: Scheduler, frozen_until: Callable[[], float], body: Callable[[], None]) -> None:
        """``frozen_until``: the time before which the actor does not run."""
        self._scheduler = scheduler
        self._frozen_until = frozen_until
        self._body = body
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._killed = False
        self._has_ended = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        scheduler.after(0, self._resume)

    def sleep(self, seconds: float) -> None:
        """Sleep. Called in the actor's own thread."""
        self._scheduler.after(seconds, self._resume)
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """Kill the actor. Called in another thread."""
        if not self._has_ended:
            self._killed = True
            self._switch()

    def _resume(self) -> None:
        if self._has_ended:
            return
        if self._scheduler.now < self._frozen_until():
            self._scheduler.at(self._frozen_until(), self._resume)
            return
        self._switch()
        if self.failure is not None:
            raise self.failure

    def _switch(self) -> None:
        self._go.release()
        self._back.acquire()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self._body()
        except Killed:
            pass
        except BaseException as failure:  # noqa: BLE001 raised again by _resume
            self.failure = failure
        self._has_ended = True
        self._back.release()
