"""The borders between the control plane's resources and its components.

Resources (applications, operations, ..) write the intended state to the catalog; the components bring it about:

=====================  ======================================  ===================================================
border                 implemented by                          called by
=====================  ======================================  ===================================================
:class:`Supervisor`    ``runtime/supervision``                 commands: "look at the catalog now"
:class:`Builder`       ``runtime/builder``                     commands: what does this artifact contain?
:class:`Leadership`    ``runtime/leadership.py``               whatever only one control plane may do
:class:`Component`     what ``runtime`` has running            the app factory: open and close
:class:`Executions`    ``catalog/ledger.py``                   the supervisor: what shall run; what became of it
:class:`Snapshots`     ``queries/snapshots.py``                look-ups and replicas: which snapshot is meant?
=====================  ======================================  ===================================================

``composition.py`` puts them together. All methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from epochal.contracts.acceptance import NOTHING_ACCEPTED, Acceptance
from epochal.contracts.catalog import Change, EpochRecord, EpochState, Failure, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.contracts.parameters import Parameters
from epochal.service.domain.nodes import Node
from epochal.wire.applications import AttemptState, ExecutionState
from epochal.wire.configuration import ApplicationConfiguration, RestartStrategy

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


EventKind = Literal["epoch", "execution", "savepoint", "operation"]


@dataclass(frozen=True)
class ControlEvent:
    """Something has changed. ``data`` is JSON and repeats ``application``, ``None`` where none is concerned (yet)."""

    kind: EventKind
    application: str | None
    data: dict[str, Any]
    at: datetime


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


@dataclass(frozen=True)
class SupervisedAttempt:
    """``process`` is what ``launched`` stored. ``begun``: the driver has called ``begin_attempt``."""

    number: int
    state: AttemptState
    process: str | None
    begun: bool
    started_at: datetime
    ended_at: datetime | None
    failure: Failure | None


@dataclass(frozen=True)
class SupervisedExecution:
    """An execution that is not over. ``attempts`` oldest first, as many of the latest as its restart strategy counts;
    ``stop_requested_at`` is set in state ``stopping``.
    """

    id: str
    application: str
    state: ExecutionState
    restart: RestartStrategy
    heartbeat_at: datetime | None
    stop_requested_at: datetime | None
    attempts: tuple[SupervisedAttempt, ...]
    detail: str | None = None
    """What was said last of the execution, for people."""


@dataclass(frozen=True)
class Supervised:
    """What there was to supervise ``at`` a moment of the database's clock, which all times in it are by."""

    at: datetime
    executions: tuple[SupervisedExecution, ...]


@dataclass(frozen=True)
class DriverName:
    """The driver of one attempt, whichever control plane has launched it, and however often it tried."""

    execution: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.execution}-{self.attempt}"


@dataclass(frozen=True)
class AttemptOver:
    """An attempt that is over since so many seconds, by the database's clock. ``process``: what ``launched`` stored."""

    state: AttemptState
    seconds: float
    process: str | None = None


@dataclass(frozen=True)
class GoingOn:
    """An execution that is not over, and the latest attempt of it; 0: none yet."""

    execution: str
    application: str
    attempt: int


@dataclass(frozen=True)
class LaunchPlan:
    """All that a driver's document needs but the token, the URLs and the work directory: nothing of it is a place on
    this machine."""

    execution: str
    application: str
    version: int
    branch: str
    artifact: str
    """sha256"""
    filename: str
    """Of the artifact, as its author called it."""
    parameters: Parameters
    configuration: ApplicationConfiguration
    shadow: bool
    available_now: bool = False
    drain: bool = True
    by: str | None = None
    """Who made the version."""
    message: str | None = None
    acceptance: Acceptance = NOTHING_ACCEPTED
    nodes: tuple[Node, ...] = ()
    """Those that are there."""


@dataclass(frozen=True)
class AttemptTicket:
    """A new attempt: its number (rising along the branch, also across executions) and its driver's token."""

    execution: str
    attempt: int
    token: str = field(repr=False)


class Executions(Protocol):
    """The supervisor's side of the catalog. Raises ``NotFound``; ``CatalogUnavailable`` (try again)."""

    def supervised(self) -> Supervised:
        """Every execution that is ``starting``, ``running`` or ``stopping``."""

    def going_on(self) -> Sequence[GoingOn]:
        """As :meth:`supervised`, only the names."""

    def over(self, drivers: Collection[DriverName]) -> Mapping[DriverName, AttemptOver]:
        """Those of these whose attempts are over. What the catalog does not know is left out: it is another one's."""

    def plan(self, execution: str) -> LaunchPlan:
        """What to launch."""

    def new_attempt(self, execution: str) -> AttemptTicket:
        """Row ``running``; the execution is ``starting`` again. ``Conflict`` unless it is starting or running."""

    def launched(self, execution: str, attempt: int, process: str) -> None:
        """The driver's process exists: how to find it again after a control plane restart (at most 200 characters)."""

    def waits(self, execution: str, attempt: int, cause: str) -> None:
        """Why the driver of the attempt has not begun: people are shown it until it has. Nothing, when it has begun."""

    def attempt_ended(
        self, execution: str, attempt: int, state: Literal["ended", "lost", "failed"], failure: Failure | None
    ) -> None:
        """The process is gone. What the driver said by itself (``finish``) stays; then this does nothing."""

    def attempt_not_heard(
        self, execution: str, attempt: int, heard_at: datetime | None, failure: Failure | None
    ) -> None:
        """Lost, since it was not heard after ``heard_at``. ``Conflict`` when it was heard in the meantime."""

    def execution_ended(self, execution: str, state: Literal["stopped", "failed"], failure: Failure | None) -> None:
        """No further attempt. Ends the execution's operations; a waiting restart begins its successor. Idempotent."""


# Snapshots.


@dataclass(frozen=True)
class Making:
    """When and by what a snapshot was made. ``application`` is the name, also of one that was deleted since."""

    application: str
    state: EpochState
    committed_at: datetime | None
    version: int
    artifact: str
    filename: str
    parameters: Parameters
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class ApplicationHead:
    """Where an application stands. ``committed`` and ``prepared`` (not committed, oldest first) are of the lineage."""

    application: str
    branch: str
    committed: ManifestReference | None
    prepared: tuple[ManifestReference, ...]


class Snapshots(Protocol):
    """Which snapshot does a reader mean? SQL only, no file is read. ``NotFound`` for an unknown application."""

    def heads(self) -> Sequence[ApplicationHead]:
        """All applications, also stopped ones: what replicas follow."""

    def head(self, application: str) -> ApplicationHead:
        """One application."""

    def resolve(
        self,
        application: str,
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
    ) -> ManifestReference:
        """The committed snapshot that is meant. ``NotFound``; ``SnapshotExpired`` past ``retained_epochs`` unless a
        savepoint, a pin or a fork holds it; ``InvalidInput`` unless exactly one is given."""

    def expired(self, key: EpochKey) -> datetime | None:
        """When garbage collection took the snapshot's files; ``None``: it did not."""

    def makings(self, keys: Collection[EpochKey]) -> Mapping[EpochKey, Making]:
        """What the catalog knows of the making of snapshots, by key; unknown ones are left out."""

    def reference(self, application: str, key: EpochKey) -> ManifestReference:
        """The manifest of a prepared or committed epoch of the application's lineage, or of a branch that a rollback
        left. ``NotFound`` for any other key, and for an unknown application."""

    def record(self, application: str, epoch: int) -> EpochRecord:
        """One epoch of the application's lineage, in any state. ``NotFound``."""
