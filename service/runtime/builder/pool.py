"""Limits of concurrent and of waiting builds; further ones are refused."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from epochal.contracts.catalog import ManifestReference, RestorePoint
from epochal.contracts.configuration import Parameters
from epochal.engine.trial_report import TrialReport
from epochal.errors import TooManyRequests
from epochal.pipeline.description import GraphDescription
from epochal.service.domain.building import Builds, RekeyOf, RestorePointsOf, ShownOf, TrialOf
from epochal.service.domain.ports import Builder, Meanwhile, SpareFigures
from epochal.wire.configuration import ApplicationConfiguration

_LONGEST_PAUSE_SECONDS = 30.0


class BoundedBuilder:
    """Implements :class:`epochal.service.domain.ports.Builder` with another builder. A build takes seconds and a JVM,
    and its caller waits in one of the threads that answer requests: ``running`` and ``waiting`` together have to stay
    well below their number. Trials and rekeys are not counted: each kind has one thread of its own. ``describe`` and
    ``analyse`` also raise ``TooManyRequests``; nothing was begun then."""

    def __init__(self, builder: Builder, running: int, waiting: int) -> None:
        self._builder = builder
        self._running = running
        self._waiting = waiting
        self._inside = 0
        self._last_seconds = 5.0
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(running)

    @property
    def builds(self) -> Builds:
        """Running and waiting builds."""
        inside = self._inside
        running = min(inside, self._running)
        return Builds(running, inside - running, self._running, self._waiting)

    @property
    def spares(self) -> SpareFigures:
        return self._builder.spares

    def open(self) -> None:
        self._builder.open()

    def close(self) -> None:
        self._builder.close()

    def describe(
        self, project: str, artifact: Path, parameters: Parameters, configuration: ApplicationConfiguration
    ) -> GraphDescription:
        with self._place():
            return self._builder.describe(project, artifact, parameters, configuration)

    def analyse(
        self, project: str, artifact: Path, parameters: Parameters, configuration: ApplicationConfiguration
    ) -> GraphDescription:
        with self._place():
            return self._builder.analyse(project, artifact, parameters, configuration)

    def trial(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        configuration: ApplicationConfiguration,
        trial: TrialOf,
        meanwhile: Meanwhile,
    ) -> TrialReport:
        return self._builder.trial(project, artifact, parameters, configuration, trial, meanwhile)

    def rekey(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        configuration: ApplicationConfiguration,
        target: RekeyOf,
        meanwhile: Meanwhile,
    ) -> ManifestReference:
        return self._builder.rekey(project, artifact, parameters, configuration, target, meanwhile)

    def shown(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        branch: ShownOf,
        configuration: ApplicationConfiguration,
    ) -> Mapping[str, int | None]:
        with self._place():
            return self._builder.shown(project, artifact, parameters, branch, configuration)

    def restore_points(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        tables: RestorePointsOf,
        configuration: ApplicationConfiguration,
    ) -> Mapping[str, RestorePoint]:
        with self._place():
            return self._builder.restore_points(project, artifact, parameters, tables, configuration)

    @contextmanager
    def _place(self) -> Iterator[None]:
        with self._lock:
            if self._inside >= self._running + self._waiting:
                raise TooManyRequests(
                    f"{self._running} pipelines are being built and {self._waiting} wait for it; this one was not "
                    "begun. Repeat the call in a moment.",
                    retry_after_seconds=math.ceil(min(self._last_seconds, _LONGEST_PAUSE_SECONDS)),
                )
            self._inside += 1
        try:
            with self._places:
                began = time.monotonic()
                yield
                self._last_seconds = time.monotonic() - began
        finally:
            with self._lock:
                self._inside -= 1
