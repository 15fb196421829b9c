"""Ports between the control plane's resources and its components.

Resources (applications, operations, ..) write the intended state to the catalog; components realise it:

=====================  ======================================  ===================================================
port                   implemented by                          called by
=====================  ======================================  ===================================================
:class:`Supervisor`    ``runtime/supervision``                 commands, to begin a round immediately
:class:`Builder`       ``runtime/builder``                     commands, to build and analyse pipelines
:class:`Leadership`    ``runtime/leadership.py``               work that only one control plane may do
:class:`Component`     background services of ``runtime``      the app factory
``Executions``         ``catalog/ledger.py``                   the supervisor (``domain/executions.py``)
``Snapshots``          ``queries/snapshots.py``                look-ups and replicas (``domain/snapshots.py``)
=====================  ======================================  ===================================================

``composition.py`` connects them. All methods are thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from epochal.contracts.catalog import ManifestReference, RestorePoint
from epochal.contracts.configuration import Parameters
from epochal.wire.configuration import ApplicationConfiguration

if TYPE_CHECKING:  # the internal process does not load the engine
    from epochal.engine.trial_report import TrialReport
    from epochal.pipeline.description import GraphDescription
    from epochal.service.domain.building import RekeyOf, RestorePointsOf, ShownOf, TrialOf


class Component(Protocol):
    """A long-lived component of the control plane."""

    def open(self) -> None:
        """Start threads and subprocesses. Called once, before the first request."""

    def close(self) -> None:
        """Stop them within seconds. Drivers continue to run, and the next control plane adopts them."""


# Builder.


@dataclass(frozen=True)
class SpareFigures:
    """Processes with a started Spark session: their maximum, current number, and memory in bytes.

    ``warmed_seconds``: start-up time of the last one. ``taken``, ``cold``: number of drivers that used a spare, and
    that found none.
    """

    limit: int = 0
    ready: int = 0
    warming: int = 0
    bytes: int = 0
    warmed_seconds: float | None = None
    taken: int = 0
    cold: int = 0


Meanwhile = Callable[[], None]
"""Called about every second during long work; an exception ends the work."""


class Builder(Component, Protocol):
    """Builds pipelines in other processes, so that no author's code runs in the control plane. A build has access to
    the secrets of its ``project`` and to the namespace of its pods, and to those of no other project.

    ``GraphDescription.sinks`` contains the targets; ``tables`` is ``None`` if determining the state tables requires
    Spark.

    If the number of concurrent builds is limited, methods raise ``TooManyRequests`` when the limit is reached. They
    raise ``PipelineError``, ``ParameterError``, ``ArtifactError``, ``SchemaError`` and others, naming operator and fix.
    """

    @property
    def spares(self) -> SpareFigures:
        """Processes with a started Spark session."""

    def describe(
        self, project: str, artifact: Path, parameters: Parameters, configuration: ApplicationConfiguration
    ) -> GraphDescription:
        """Fast (tens of milliseconds; a warm subprocess), without Spark."""

    def analyse(
        self, project: str, artifact: Path, parameters: Parameters, configuration: ApplicationConfiguration
    ) -> GraphDescription:
        """The full analysis with Spark against empty inputs, in a fresh subprocess (some seconds)."""

    def trial(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        configuration: ApplicationConfiguration,
        trial: TrialOf,
        meanwhile: Meanwhile,
    ) -> TrialReport:
        """Run epochs again in shadow, in a new subprocess; unbounded duration. Also raises the errors that abort
        epochs."""

    def rekey(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        configuration: ApplicationConfiguration,
        target: RekeyOf,
        meanwhile: Meanwhile,
    ) -> ManifestReference:
        """Write a snapshot with other key groups by an offline Spark job; unbounded duration. Raises
        ``SnapshotError``."""

    def shown(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        branch: ShownOf,
        configuration: ApplicationConfiguration,
    ) -> Mapping[str, int | None]:
        """The latest epoch of a branch that each sink shows, 0 for none; ``None`` if the sink does not report it.
        Queries the sinks' servers (seconds) and changes nothing. Also raises ``SinkError``."""

    def restore_points(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        tables: RestorePointsOf,
        configuration: ApplicationConfiguration,
    ) -> Mapping[str, RestorePoint]:
        """By sink whose target is a table of versions, the version before the epochs that a rollback leaves behind, or
        why there is none, also if the table cannot be read. Reads the tables (seconds)."""


# Leadership.


@dataclass(frozen=True)
class Leading:
    """The lead of this control plane, valid until the next query. ``term`` increases with each change of the leader.

    ``since`` (database clock): start of the uninterrupted period in which this control plane could write to the
    catalog. Missing heartbeats before it prove nothing.
    """

    term: int
    since: datetime


class Leadership(Component, Protocol):
    """At most one control plane of a catalog leads. Only the leader supervises, schedules collections and deletes
    expired rows.

    Correctness of data does not depend on it, since writers are fenced by their attempt. It avoids duplicate work.
    """

    def leading(self) -> Leading | None:
        """``None`` if this control plane does not lead. Fast; called before each action. Never raises."""


# Supervision.


class Supervisor(Component, Protocol):
    """Brings running drivers into line with the catalog (``Executions.supervised``) while this control plane leads.
    Level-triggered.

    State ``starting`` without a running attempt: call ``new_attempt``, launch the driver, call ``launched``;
    immediately for the first attempt, by the restart strategy after a failure.

    State ``stopping``: heartbeats already deliver a ``stop`` directive, and no further attempt is started. If no driver
    runs, or it has not ended within the stop timeout (it is then killed), call ``attempt_ended`` and
    ``execution_ended``.

    A terminated process or an expired heartbeat: call ``attempt_ended(.., "lost" | "failed", ..)``; then start the next
    attempt or, if the restart strategy is exhausted, call ``execution_ended(.., "failed", ..)``.

    A driver that called ``finish`` without failure has already ended its attempt and execution in the catalog. Drivers
    of an earlier control plane are adopted by ``SupervisedAttempt.process`` or by their names.

    Every control plane, leading or not, terminates processes on its own machine whose attempts are over.
    """

    @property
    def spares(self) -> SpareFigures:
        """The spare drivers of this control plane."""

    def bring_log(self, process: str) -> None:
        """Copy the available log of a driver to this control plane's folder. ``process``: the value stored by
        ``launched``. Never raises."""

    def wake(self, execution: str | None = None) -> None:
        """Notify of changes to this execution, or to any, so that the next round begins immediately. Returns
        immediately, never raises."""
