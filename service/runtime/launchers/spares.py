"""Spare drivers of this machine: processes with Spark started and trained, which become drivers of one application.

They are keyed by all that is decided when Spark starts; what differs starts without one. A spare belongs to the control
plane that has started it and ends with it, unless it has become a driver: see :mod:`epochal.driver.spare`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from epochal.driver.orders import SpareOrders
from epochal.faults import declare
from epochal.service.domain.ports import SpareFigures
from epochal.service.runtime.launchers.processes import memory_of_session
from epochal.service.runtime.launchers.spare_process import SpareKey, SpareProcess
from epochal.service.runtime.spare_schedule import SpareSchedule, SpareTimes

log = logging.getLogger("epochal.spares")

LOOK_SECONDS = 1.0
OFFERED = declare("W1.offered", "a spare is ready, and can be taken")


class SparePool:
    """Keeps ``number`` spares of the keys that were asked for last, made by ``start``."""

    def __init__(
        self,
        number: int,
        folder: Path,
        start: Callable[[SpareKey, Path], SpareProcess],
        usual: Callable[[], SpareKey],
        times: SpareTimes = SpareTimes(),
        is_quiet: Callable[[], bool] = lambda: True,
    ) -> None:
        """``folder``: for spares' own folders. ``usual``: the key of an application that says nothing of Spark."""
        self._number = number
        self._folder = folder
        self._start = start
        self._usual = usual
        self._times = times
        # Whoever starts a control plane submits soon: a spare that is under way then is further than none. What is
        # launched again when it starts is launched before the first look.
        self._schedule = SpareSchedule(times, is_quiet, at_once=True)
        self._spares: list[SpareProcess] = []
        self._asked: list[SpareKey] = []
        self._warmed_seconds: float | None = None
        self._taken = self._cold = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spares", daemon=True)

    def open(self) -> None:
        if self._number:
            self._thread.start()

    def close(self) -> None:
        """The spares end; drivers that were spares go on."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        with self._lock:
            spares, self._spares = self._spares, []
        for spare in spares:
            spare.end()

    @property
    def figures(self) -> SpareFigures:
        with self._lock:
            spares, taken, cold = list(self._spares), self._taken, self._cold
        ready = sum(spare.is_ready for spare in spares)
        return SpareFigures(
            limit=self._number,
            ready=ready,
            warming=len(spares) - ready,
            bytes=sum(memory_of_session(spare.process.pid) for spare in spares),
            warmed_seconds=self._warmed_seconds,
            taken=taken,
            cold=cold,
        )

    def take(self, key: SpareKey) -> SpareProcess | None:
        """One that is the caller's from now on. The best there is: ready and answering, or at least on its way."""
        with self._lock:
            self._schedule.asked_for()
            if not self._number or not key.in_one_process:
                return None
            self._asked = [key, *(other for other in self._asked if other != key)][: self._number]
            fitting = [spare for spare in self._spares if spare.key == key and not self._is_over(spare)]
            self._spares = [spare for spare in self._spares if spare not in fitting]
        fitting.sort(key=lambda spare: not spare.is_ready)
        chosen: SpareProcess | None = None
        while fitting and chosen is None:
            spare = fitting.pop(0)
            if spare.answers(self._times.answer):
                chosen = spare
            else:
                log.warning("spare driver %s does not answer, and is replaced", spare.process)
                spare.end(at_once=True)
        with self._lock:
            self._spares += fitting
            self._taken, self._cold = self._taken + (chosen is not None), self._cold + (chosen is None)
        return chosen

    def look(self) -> None:
        """One round: what is ready, what has ended, what is too old, what is missing."""
        with self._lock:  # what was taken says something else
            spares = list(self._spares)
            now_ready = [spare for spare in spares if not spare.is_ready and spare.hear()]
        for spare in now_ready:
            self._is_now_ready(spare)
        leaving = [spare for spare in spares if self._why_it_leaves(spare) is not None]
        with self._lock:
            leaving = [spare for spare in leaving if spare in self._spares]  # others were taken meanwhile
            self._spares = [spare for spare in self._spares if spare not in leaving]
        for spare in leaving:
            self._let_go(spare)
        missing = self._missing()
        if missing is not None and not self._closing.is_set() and self._schedule.may_begin():
            self._begin(missing)

    def _is_now_ready(self, spare: SpareProcess) -> None:
        self._schedule.became_ready()
        spare.go_as_others()
        self._warmed_seconds = spare.age_seconds
        log.info("spare driver %s is ready, %.1f s after it was begun", spare.process, spare.age_seconds)
        OFFERED.hit()

    def _is_over(self, spare: SpareProcess) -> bool:
        return self._schedule.why_over(spare.age_seconds, spare.is_ready) is not None

    def _why_it_leaves(self, spare: SpareProcess) -> str | None:
        if spare.has_ended:
            return "has ended"
        over = self._schedule.why_over(spare.age_seconds, spare.is_ready)
        if over is None and spare.key not in self._kept_keys():
            return "is not what is asked for"
        return over

    def _let_go(self, spare: SpareProcess) -> None:
        why = self._why_it_leaves(spare)
        if spare.has_ended or not spare.is_ready:
            log.warning("spare driver %s %s: %s", spare.process, why, spare.last_words() or "it has said nothing")
        else:
            log.info("spare driver %s %s, and ends", spare.process, why)
        spare.end()

    def _kept_keys(self) -> Sequence[SpareKey]:
        """One for each place: the keys that were asked for last, in turn."""
        keys = self._asked or [self._usual()]
        return [keys[place % len(keys)] for place in range(self._number)]

    def _missing(self) -> SpareKey | None:
        with self._lock:
            there = [spare.key for spare in self._spares]
            keys = self._kept_keys()
        if len(there) >= self._number:
            return None
        return next((key for key in keys if there.count(key) < keys.count(key)), None)

    def _begin(self, key: SpareKey) -> None:
        self._schedule.begun()
        spare = self._start(key, self._folder)
        with self._lock:
            self._spares.append(spare)
        spare.give(SpareOrders(master=key.master, spark=dict(key.spark)))

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:
                log.exception("spare drivers cannot be looked after now")
