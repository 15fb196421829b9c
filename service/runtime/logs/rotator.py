"""Rotation of drivers' logs on this machine. Text that a driver writes between two checks takes space in addition to
the retained files."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from epochal.background.service import BackgroundService
from epochal.service.runtime.logs.rotation import rotate

log = logging.getLogger("epochal.logs")

LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 0.05
"""Pause after a check that has rotated a log: such a driver is likely to continue at that rate."""
_SHARE = 50
"""Minimum ratio of the pause to the duration of the preceding check, which is long if there are many logs."""


class LogRotator:
    """A :class:`~epochal.service.domain.ports.Component`. Rotates every log larger than ``largest`` bytes, regardless
    of the control plane that started its driver, and retains ``files`` rotated files."""

    def __init__(self, folder: Path, largest: int, files: int) -> None:
        self._folder = folder
        self._largest = largest
        self._files = files
        self._logs_that_stay: set[Path] = set()
        self._service = BackgroundService("log-rotation", self._step, LOOK_SECONDS)

    def open(self) -> None:
        self._service.start()

    def close(self) -> None:
        self._service.stop()

    def look(self) -> bool:
        """Check all logs once. Returns ``True`` if one was rotated."""
        done = False
        for path in self._folder.glob("*/*.log"):
            try:
                done |= path.stat().st_size > self._largest and rotate(path, self._largest, self._files)
            except FileNotFoundError:
                continue
            except OSError as error:
                if path not in self._logs_that_stay:
                    self._logs_that_stay.add(path)
                    log.warning("the log %s cannot be rotated, and grows: %s", path, error)
        return done

    def _step(self) -> float:
        began = time.monotonic()
        pause = _AGAIN_SECONDS if self.look() else LOOK_SECONDS
        return max(pause, _SHARE * (time.monotonic() - began))
