"""A simulated clock, and threads of which one runs at a time, in an order that a seed decides."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable


class Killed(BaseException):
    """Raised in a simulated thread where it waits, once its process is gone. No code under test catches it."""


class Scheduler:
    """Runs what is due, in the order of its time; between two of them no time passes."""

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
        """``check`` is called after each of them."""
        while self._due and self._due[0][0] <= until:
            self.now, _, call = heapq.heappop(self._due)
            call()
            check()
        self.now = until


class Actor:
    """A thread of a simulated process. It runs until it sleeps; meanwhile everybody else waits."""

    def __init__(self, scheduler: Scheduler, frozen_until: Callable[[], float], body: Callable[[], None]) -> None:
        """``frozen_until``: before this time it does not go on, whatever it waits for."""
        self._scheduler = scheduler
        self._frozen_until = frozen_until
        self._body = body
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._killed = False
        self._over = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        scheduler.after(0, self._resume)

    def sleep(self, seconds: float) -> None:
        """To be called in its own thread."""
        self._scheduler.after(seconds, self._resume)
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """To be called by another one."""
        if not self._over:
            self._killed = True
            self._switch()

    def _resume(self) -> None:
        if self._over:
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
        except BaseException as failure:  # noqa: BLE001 raised again by whoever let it run
            self.failure = failure
        self._over = True
        self._back.release()
