"""Drivers' logs on this machine are rotated, as often as it takes: what a driver writes between two looks is what it
costs beside the files that are kept."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from epochal.background.service import BackgroundService
from epochal.service.runtime.logs.rotation import rotate

log = logging.getLogger("epochal.logs")

LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 0.05
"""After a look that has rotated something: who writes so much goes on with it."""
_SHARE = 50
"""A look that takes long, since there are many logs, has so many times as long a pause after it."""


class LogRotator:
    """A :class:`~epochal.service.domain.ports.Component`. Whose driver a log is does not matter: a log that is larger
    than ``largest`` bytes is rotated, and ``files`` are kept beside it."""

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
        """One look at all logs. Whether one was rotated."""
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
