"""The supervisor: a thread that reconciles all executions while this control plane leads, and cleans up on this
machine."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from epochal.background.service import BackgroundService
from epochal.errors import EpochalError
from epochal.service.domain.executions import AttemptOver, DriverName, Executions
from epochal.service.domain.ports import Leadership, SpareFigures
from epochal.service.domain.settings import Settings
from epochal.service.domain.supervision import SupervisionSettings
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.machine import steady_seconds
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
        serves: Callable[[], bool] = lambda: True,
    ) -> None:
        """``serves``: see :class:`~epochal.service.runtime.supervision.reconciler.Reconciler`."""
        self._launcher = launcher
        self._supervision = supervision or SupervisionSettings()
        self._reconciler = Reconciler(settings, executions, launcher, leadership, self._supervision, serves=serves)
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
            log.info("the log of driver %s cannot be read now: %s", process, error)

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
            log.warning("cannot clean up after earlier attempts yet: %s", error)


class LocalCleanup:
    """Terminates leftover drivers and removes leftover directories of this machine, whether this control plane leads or
    not.

    An attempt that has ended in the catalog never runs again, and its driver is fenced. The order is essential: local
    processes and directories are listed before the catalog is read, so that none that was started since is among them.
    """

    def __init__(
        self, settings: Settings, executions: Executions, launcher: Launcher, supervision: SupervisionSettings
    ) -> None:
        self._settings = settings
        self._executions = executions
        self._launcher = launcher
        self._supervision = supervision

    def clear(self) -> None:
        """Clean up. Raises ``CatalogUnavailable``; the work is then done partly or not at all."""
        directories = self._directories()
        drivers = self._launcher.drivers()
        for driver, over in self._executions.over(drivers.keys()).items():
            reference = drivers[driver]
            if over.process == str(reference):  # another process of the same name has another log
                self._launcher.bring_log(reference)
            if not self._launcher.alive(reference) or self._overdue(driver, over):
                self._launcher.terminate(reference, kill=True)
        used = {each.execution for each in self._executions.active()} | {driver.execution for driver in drivers}
        for directory in directories:
            if directory.name not in used:
                shutil.rmtree(directory, ignore_errors=True)

    def _directories(self) -> list[Path]:
        folder = self._settings.work_directory
        return list(folder.iterdir()) if folder.is_dir() else []

    def _overdue(self, driver: DriverName, over: AttemptOver) -> bool:
        """``True`` if the driver must be killed. A driver terminates on its own after it has reported its end; Spark's
        shutdown may hang, and is then cut short."""
        if over.state == "lost":
            if not self._supervision.kill_lost_drivers:
                return False
            log.warning("driver %s was given up, and still runs; killing it", driver)
        elif over.seconds <= self._supervision.grace_seconds:
            return False
        else:
            log.warning("driver %s did not end after its attempt had; killing it", driver)
        return True
