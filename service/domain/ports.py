"""The borders between the control plane's resources and its components.

Resources (applications, operations, ..) write the intended state to the catalog; the components bring it about:

=====================  ======================================  ===================================================
border                 implemented by                          called by
=====================  ======================================  ===================================================
:class:`Supervisor`    ``runtime/supervision``                 commands: "look at the catalog now"
:class:`Builder`       ``runtime/builder``                     commands: what does this artifact contain?
:class:`Leadership`    ``runtime/leadership.py``               whatever only one control plane may do
:class:`Component`     what ``runtime`` has running            the app factory: open and close
``Executions``         ``catalog/ledger.py``                   the supervisor (``domain/executions.py``)
``Snapshots``          ``queries/snapshots.py``                look-ups and replicas (``domain/snapshots.py``)
=====================  ======================================  ===================================================

``composition.py`` puts them together. All methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.configuration import Parameters
from epochal.wire.configuration import ApplicationConfiguration

if TYPE_CHECKING:  # what answers drivers loads no engine
    from epochal.engine.trial_report import TrialReport
    from epochal.pipeline.description import GraphDescription
    from epochal.service.domain.building import RekeyOf, ShownOf, TrialOf


class Component(Protocol):
    """A long-lived component of the control plane."""

    def open(self) -> None:
        """Start threads and subprocesses. Called once, before the first request."""

    def close(self) -> None:
        """Stop them, within seconds. Drivers are left running: the next control plane adopts them."""


# Builder.


@dataclass(frozen=True)
class SpareFigures:
    """Processes with Spark started: how many there are, and may be; the memory that they have now, in bytes.

    ``warmed_seconds``: the last one's, from its start until it was ready. ``taken``, ``cold``: drivers that were one
    before, and those for which there was none.
    """

    limit: int = 0
    ready: int = 0
    warming: int = 0
    bytes: int = 0
    warmed_seconds: float | None = None
    taken: int = 0
    cold: int = 0


Meanwhile = Callable[[], None]
"""Called every second or so while somebody waits for long work: what it raises ends the work."""


class Builder(Component, Protocol):
    """Builds pipelines in other processes: no author's code ever runs in the control plane. It has what is its
    ``project``'s, and nothing of another one: secrets, and the namespace of its pods.

    ``GraphDescription.sinks`` has the targets; ``tables`` is ``None`` where finding the state tables needs Spark.

    Where the builds that run at the same time are bounded, both raise ``TooManyRequests`` when there is no place.
    Both raise ``PipelineError``, ``ParameterError``, ``ArtifactError``, ``SchemaError``, .. naming operator and fix.
    """

    @property
    def spares(self) -> SpareFigures:
        """The processes that have Spark started for what needs it."""

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
        """Run epochs again in shadow, in a fresh subprocess (as long as it takes). Also raises what aborts an epoch."""

    def rekey(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        configuration: ApplicationConfiguration,
        target: RekeyOf,
        meanwhile: Meanwhile,
    ) -> ManifestReference:
        """Write a snapshot with other key groups by an offline Spark job (as long as it takes). ``SnapshotError``."""

    def shown(
        self,
        project: str,
        artifact: Path,
        parameters: Parameters,
        branch: ShownOf,
        configuration: ApplicationConfiguration,
    ) -> Mapping[str, int | None]:
        """For each sink the latest epoch of a branch that it shows, 0 for none; ``None``: it does not say so. Asks the
        sinks' servers (seconds), and changes nothing. Also raises ``SinkError``."""


# Events.


# Leadership.


@dataclass(frozen=True)
class Leading:
    """This control plane leads, and may act until it is asked again. ``term`` rises with each time that one begins to.

    ``since``, by the database's clock: from then on this one's writes to the catalog have landed without a break, so
    what was not heard before proves nothing.
    """

    term: int
    since: datetime


class Leadership(Component, Protocol):
    """Of all control planes of a catalog at most one leads. It alone supervises, schedules collections and lets rows
    expire.

    Data does not depend on it, since writers are fenced by their attempt: it keeps two from doing the same.
    """

    def leading(self) -> Leading | None:
        """``None``: another one leads, or none. Quick; to be asked before each act. Never raises."""


# Supervision.


class Supervisor(Component, Protocol):
    """Makes what runs equal to what the catalog wants (``Executions.supervised``), as long as it leads.
    Level-triggered.

    - state ``starting`` and no attempt that is ``running``: ``new_attempt``, launch its driver, ``launched``;
      right away for the first attempt, by the restart strategy after a failed one.
    - state ``stopping``: a ``stop`` directive is already on its way with the heartbeats. Start no further attempt. If
      nothing runs, or the driver has not ended in the time allowed (then kill it): ``attempt_ended``, and
      ``execution_ended``.
    - a process that is gone, or a heartbeat that is too old: ``attempt_ended(.., "lost" | "failed", ..)``, then the
      next attempt or, when the restart strategy is exhausted, ``execution_ended(.., "failed", ..)``.
    - a driver that said ``finish`` without failure has ended its attempt *and* execution in the catalog already.
    The drivers of an earlier control plane are adopted by ``SupervisedAttempt.process``, or by their names.

    Leading or not, it ends the processes on its own machine whose attempts are over.
    """

    @property
    def spares(self) -> SpareFigures:
        """The spare drivers that this control plane keeps."""

    def bring_log(self, process: str) -> None:
        """Have the log of a driver in this control plane's folder, as far as it can be had. ``process``: as it was
        stored by ``launched``. Never raises."""

    def wake(self, execution: str | None = None) -> None:
        """This execution's wishes changed, or those of some: look now instead of at the next round. Returns at once,
        never raises."""


# Snapshots.
