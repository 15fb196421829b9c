"""The supervisor: a thread that looks at every execution while this control plane leads, and clears up on this
machine."""

from __future__ import annotations

import logging
from collections.abc import Callable

from epochal.background.service import BackgroundService
from epochal.errors import EpochalError
from epochal.service.domain.executions import Executions
from epochal.service.domain.ports import Leadership, SpareFigures
from epochal.service.domain.settings import Settings
from epochal.service.domain.supervision import SupervisionSettings
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.machine import steady_seconds
from epochal.service.runtime.supervision.local_cleanup import LocalCleanup
from epochal.service.runtime.supervision.reconciler import Reconciler

log = logging.getLogger("epochal.supervision")


class ThreadedSupervisor:
    """The control plane's :class:`~epochal.service.domain.ports.Supervisor`."""

    def __init__(
        self,
        settings: Settings,
        executions: Executions,
        launcher: Launcher,
        leadership: Leadership,
        supervision: SupervisionSettings | None = None,
        hears: Callable[[], bool] = lambda: True,
    ) -> None:
        """``hears``: see :class:`~epochal.service.runtime.supervision.reconciler.Reconciler`."""
        self._launcher = launcher
        self._supervision = supervision or SupervisionSettings()
        self._reconciler = Reconciler(settings, executions, launcher, leadership, self._supervision, hears=hears)
        self._cleanup = LocalCleanup(settings, executions, launcher, self._supervision)
        self._sweep_at = 0.0
        self._service = BackgroundService("supervisor", self._step, self._supervision.round_seconds)
        launcher.tell_of_ends(self._service.wake)

    def open(self) -> None:
        self._launcher.open()
        self._service.start()

    def close(self) -> None:
        self._service.stop(timeout=10)
        self._launcher.close()

    @property
    def spares(self) -> SpareFigures:
        return self._launcher.spares

    def bring_log(self, process: str) -> None:
        try:
            self._launcher.bring_log(ProcessReference.parse(process))
        except EpochalError as error:
            log.info("the log of driver %s cannot be had now: %s", process, error)

    def wake(self, execution: str | None = None) -> None:
        self._service.wake()

    def _step(self) -> float:
        pause = self._reconciler.round()
        self._sweep()
        return pause

    def _sweep(self) -> None:
        if steady_seconds() < self._sweep_at:
            return
        self._sweep_at = steady_seconds() + self._supervision.sweep_seconds
        try:
            self._cleanup.clear()
        except EpochalError as error:
            log.warning("what is left of earlier attempts has to wait: %s", error)
