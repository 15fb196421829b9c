"""What is left on this machine of attempts and executions that are over: processes, work directories."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from epochal.service.domain.executions import AttemptOver, DriverName, Executions
from epochal.service.domain.settings import Settings
from epochal.service.domain.supervision import SupervisionSettings
from epochal.service.runtime.launchers.base import Launcher

log = logging.getLogger("epochal.supervision")


class Remains:
    """Each control plane clears up on its own machine, leading or not: nobody else can.

    What the catalog calls over stays so, and who belongs to it is fenced. So it is safe as long as what is here is
    looked at before the catalog is: whatever was started since is not among it.
    """

    def __init__(
        self, settings: Settings, executions: Executions, launcher: Launcher, supervision: SupervisionSettings
    ) -> None:
        self._settings = settings
        self._executions = executions
        self._launcher = launcher
        self._supervision = supervision

    def clear(self) -> None:
        """Raises ``CatalogUnavailable``; then nothing, or a part of it, was done."""
        directories = self._directories()
        drivers = self._launcher.drivers()
        for driver, over in self._executions.over(drivers.keys()).items():
            reference = drivers[driver]
            if over.process == str(reference):  # not what only looks like it, whose log would be taken for its
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
        """A driver ends by itself after it has said so; Spark's shutdown may hang, and is then cut short."""
        if over.state == "lost":
            if not self._supervision.kill_lost_drivers:
                return False
            log.warning("driver %s was given up, and still runs; killing it", driver)
        elif over.seconds <= self._supervision.grace_seconds:
            return False
        else:
            log.warning("driver %s did not end after its attempt had; killing it", driver)
        return True
