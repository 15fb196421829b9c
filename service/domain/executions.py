"""Executions as supervision sees them: the port that the catalog implements, and its values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from epochal.contracts.catalog import Failure
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.service.domain.nodes import Node
from epochal.wire.applications import AttemptState, ExecutionState
from epochal.wire.configuration import ApplicationConfiguration, RestartStrategy


@dataclass(frozen=True)
class SupervisedAttempt:
    """``process``: the value stored by ``launched``. ``begun``: the driver has called ``begin_attempt``."""

    number: int
    state: AttemptState
    process: str | None
    begun: bool
    started_at: datetime
    ended_at: datetime | None
    failure: Failure | None


@dataclass(frozen=True)
class SupervisedExecution:
    """An active execution. ``attempts``: the latest ones that its restart strategy counts, oldest first.
    ``stop_requested_at`` is set in state ``stopping``."""

    id: str
    application: str
    state: ExecutionState
    restart: RestartStrategy
    heartbeat_at: datetime | None
    stop_requested_at: datetime | None
    attempts: tuple[SupervisedAttempt, ...]
    detail: str | None = None
    """The latest status, for people."""


@dataclass(frozen=True)
class Supervised:
    """Active executions ``at`` a time of the database clock, which applies to all times in it."""

    at: datetime
    executions: tuple[SupervisedExecution, ...]


@dataclass(frozen=True)
class DriverName:
    """The driver of one attempt, independent of the control plane that launched it and of the number of launches."""

    execution: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.execution}-{self.attempt}"


@dataclass(frozen=True)
class AttemptOver:
    """An attempt that ended ``seconds`` ago by the database clock. ``process``: the value stored by ``launched``."""

    state: AttemptState
    seconds: float
    process: str | None = None


@dataclass(frozen=True)
class ActiveExecution:
    """An active execution and its latest attempt (0 before the first)."""

    execution: str
    application: str
    attempt: int


@dataclass(frozen=True)
class LaunchPlan:
    """Contents of a driver's orders, except the token, the URLs and the work directory. Contains no local paths."""

    execution: str
    application: str
    version: int
    branch: str
    artifact: str
    """Its sha256."""
    filename: str
    """The artifact's file name."""
    parameters: Parameters
    configuration: ApplicationConfiguration
    shadow: bool
    available_now: bool = False
    drain: bool = True
    by: str | None = None
    """Creator of the version."""
    message: str | None = None
    acceptance: Acceptance = NOTHING_ACCEPTED
    nodes: tuple[Node, ...] = ()
    """Nodes with a recent heartbeat."""


@dataclass(frozen=True)
class AttemptTicket:
    """A new attempt: its number, which increases along the branch, also across executions, and its driver's token."""

    execution: str
    attempt: int
    token: str = field(repr=False)


class Executions(Protocol):
    """The catalog as supervision uses it. Raises ``NotFound``; ``CatalogUnavailable`` (retry)."""

    def supervised(self) -> Supervised:
        """Every execution that is ``starting``, ``running`` or ``stopping``."""

    def active(self) -> Sequence[ActiveExecution]:
        """The same executions, without details."""

    def over(self, drivers: Collection[DriverName]) -> Mapping[DriverName, AttemptOver]:
        """The given drivers whose attempts have ended. Drivers unknown to the catalog are omitted; they belong to
        another catalog."""

    def plan(self, execution: str) -> LaunchPlan:
        """The values for launching a driver."""

    def new_attempt(self, execution: str) -> AttemptTicket:
        """Add a running attempt; the execution is ``starting`` again. Raises ``Conflict`` unless it is starting or
        running."""

    def launched(self, execution: str, attempt: int, process: str) -> None:
        """Store a reference to the launched process, by which it is found after a restart (at most 200 characters)."""

    def waits(self, execution: str, attempt: int, cause: str) -> None:
        """Store why the driver has not begun, for people. Without effect once it has begun."""

    def attempt_ended(
        self, execution: str, attempt: int, state: Literal["ended", "lost", "failed"], failure: Failure | None
    ) -> None:
        """Record that the process has terminated. Without effect if the driver has already called ``finish``."""

    def attempt_lost(self, execution: str, attempt: int, heard_at: datetime | None, failure: Failure | None) -> None:
        """Record the loss of a driver without heartbeats since ``heard_at``. Raises ``Conflict`` if a heartbeat has
        arrived since."""

    def execution_ended(self, execution: str, state: Literal["stopped", "failed"], failure: Failure | None) -> None:
        """End the execution and its operations; a pending restart begins its successor. Idempotent."""
