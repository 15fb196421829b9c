"""What is left of executions that are over: a process that does not end, and the work directory."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from epochal.service.domain.ports import SupervisedExecution
from epochal.service.runtime.launchers.base import Launcher, ProcessReference

log = logging.getLogger("epochal.supervision")

GRACE_SECONDS = 30.0


@dataclass
class _Departure:
    processes: tuple[ProcessReference, ...]
    kill_at: float


class Departures:
    """Sees executions leave the list of the supervised, and clears up after them.

    Drivers end by themselves after ``finish``; Spark's shutdown may hang, and is then cut short.
    """

    def __init__(self, launcher: Launcher, work_directory: Path) -> None:
        self._launcher = launcher
        self._work_directory = work_directory
        self._present: dict[str, tuple[ProcessReference, ...]] = {}
        self._departing: dict[str, _Departure] = {}
        self._swept = False

    def look(self, supervised: Sequence[SupervisedExecution]) -> None:
        present = {execution.id: _processes(execution) for execution in supervised}
        for execution, processes in self._present.items():
            if execution not in present:
                self._departing[execution] = _Departure(processes, time.monotonic() + GRACE_SECONDS)
        self._present = present
        for execution in list(self._departing):
            if self._gone(self._departing[execution]):
                del self._departing[execution]
                self._remove(execution)
        if not self._swept:
            self._swept = True
            self._sweep()

    def _gone(self, departure: _Departure) -> bool:
        alive = [process for process in departure.processes if self._launcher.alive(process)]
        if alive and time.monotonic() > departure.kill_at:
            log.warning("driver %s did not end after its execution had; killing it", alive[-1])
            for process in alive:
                self._launcher.terminate(process, kill=True)
        return not alive

    def _remove(self, execution: str) -> None:
        shutil.rmtree(self._work_directory / execution, ignore_errors=True)

    def _sweep(self) -> None:
        """Work directories of executions that ended while no control plane was there."""
        if self._work_directory.is_dir():
            for directory in self._work_directory.iterdir():
                if directory.name not in self._present:
                    self._remove(directory.name)


def _processes(execution: SupervisedExecution) -> tuple[ProcessReference, ...]:
    return tuple(ProcessReference.parse(attempt.process) for attempt in execution.attempts if attempt.process)
