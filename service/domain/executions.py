"""Executions as their supervisor sees them: the port that the catalog implements, and its values."""

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
