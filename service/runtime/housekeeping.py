"""Periodic tasks of a catalog, run by the control plane that leads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from epochal.background.service import BackgroundService
from epochal.errors import EpochalError
from epochal.service.domain.ports import Leadership
from epochal.service.runtime.machine import steady_seconds

log = logging.getLogger("epochal.housekeeping")

LOOK_SECONDS = 1.0

Task = Callable[[], bool]
"""One piece of work of bounded length; returns ``True`` if more work remains. Idempotent, since a control plane may
lose its lease during the task without noticing."""


@dataclass
class _Regular:
    name: str
    every_seconds: float
    task: Task
    due_at: float = 0.0


class Housekeeping:
    """A :class:`~epochal.service.domain.ports.Component`: one thread, one task at a time.

    Each task is called when this control plane begins to lead, and ``every_seconds`` after its last call while it
    leads; it is called again immediately while more work remains. Leadership is checked before each call.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._regular: list[_Regular] = []
        self._term: int | None = None
        self._service = BackgroundService("housekeeping", self.look, LOOK_SECONDS, delay=LOOK_SECONDS)

    def register(self, name: str, every_seconds: float, task: Task) -> None:
        """Register a task. Call it before :meth:`open`. ``name`` is used in the log."""
        self._regular.append(_Regular(name, every_seconds, task))

    def open(self) -> None:
        self._service.start()

    def close(self) -> None:
        self._service.stop()

    def look(self) -> None:
        """Call the tasks that are due, in the caller's thread."""
        for regular in self._regular:
            if not self._leads():
                return
            if steady_seconds() >= regular.due_at:
                self._call(regular)
                regular.due_at = steady_seconds() + regular.every_seconds

    def _leads(self) -> bool:
        leading = self._leadership.leading()
        if leading is None or self._service.stopping:
            return False
        if leading.term != self._term:
            self._term = leading.term
            for regular in self._regular:
                regular.due_at = 0.0
        return True

    def _call(self, regular: _Regular) -> None:
        try:
            while self._leads() and regular.task():
                pass
        except EpochalError as error:
            log.warning("%s is delayed: %s", regular.name, error)
        except Exception:
            log.exception("%s failed", regular.name)
