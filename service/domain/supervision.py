"""What to do next about one execution: a pure function of what the catalog says, what the process does, and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from pydantic import BaseModel, ConfigDict, Field

from epochal.contracts.catalog import Failure
from epochal.service.domain.executions import SupervisedAttempt, SupervisedExecution
from epochal.service.domain.failures import permanent
from epochal.wire.configuration import RestartStrategy


class Process(Enum):
    """What is known of an attempt's process."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    """It was never recorded: the control plane ended between launching it and writing that down."""
    ELSEWHERE = "elsewhere"
    """On another machine, from which nothing but its heartbeats is known here."""


class Loss(Enum):
    """Why an attempt has to be given up."""

    GONE = "its process is gone"
    NOT_HEARD = "its heartbeats ended"
    NEVER_HEARD = "it never sent a heartbeat"
    NOT_STOPPED = "it did not stop in time"
    NOT_BEGUN = "it is to stop, and its driver has not begun"


@dataclass(frozen=True)
class Wait:
    """Nothing to do now. ``seconds``: until there will be, where that is known already."""

    seconds: float | None = None


@dataclass(frozen=True)
class Launch:
    """Start the next attempt."""


@dataclass(frozen=True)
class GiveUpAttempt:
    """The running attempt is over; kill what may be left of it."""

    attempt: SupervisedAttempt
    loss: Loss
    kill: bool


@dataclass(frozen=True)
class EndExecution:
    """No further attempt."""

    failed: bool
    failure: Failure | None


Decision = Wait | Launch | GiveUpAttempt | EndExecution


def decide(
    execution: SupervisedExecution,
    process: Process,
    now: datetime,
    listening_since: datetime,
    settings: SupervisionSettings,
) -> Decision:
    """The next step for ``execution``. ``process`` is that of its last attempt.

    All times are by the database's clock, ``now`` too: it is when the catalog was read. ``listening_since``: since when
    heartbeats could arrive without a break. Silence before it proves nothing, since this control plane did not lead, or
    was itself stopped, or the catalog could not be written.
    """
    current = execution.attempts[-1] if execution.attempts else None
    if current is not None and current.state == "running":
        return _while_running(execution, current, process, now, listening_since, settings)
    if execution.state == "stopping":
        return EndExecution(failed=False, failure=current.failure if current else None)
    return Launch() if current is None else _after_failure(execution, current, now)


def _while_running(
    execution: SupervisedExecution,
    attempt: SupervisedAttempt,
    process: Process,
    now: datetime,
    listening_since: datetime,
    settings: SupervisionSettings,
) -> Decision:
    if process is Process.GONE:
        return GiveUpAttempt(attempt, Loss.GONE, kill=True)
    if execution.stop_requested_at is not None and execution.state == "stopping":
        if not attempt.begun and now >= execution.stop_requested_at + _allowed_to_begin(execution, settings):
            return GiveUpAttempt(attempt, Loss.NOT_BEGUN, kill=True)
        allowed_until = max(execution.stop_requested_at, listening_since) + timedelta(seconds=settings.stop_seconds)
        if now > allowed_until:
            return GiveUpAttempt(attempt, Loss.NOT_STOPPED, kill=True)
    heard_at = execution.heartbeat_at
    if heard_at is not None and heard_at >= attempt.started_at:
        if now - max(heard_at, listening_since) > timedelta(seconds=settings.lease_seconds):
            return GiveUpAttempt(attempt, Loss.NOT_HEARD, kill=settings.kill_lost_drivers)
    else:
        # A process that was never recorded is not known to exist: it gets a lease to be heard, not a JVM's start.
        allowed = settings.lease_seconds if process is Process.UNKNOWN else settings.start_seconds
        if now - max(attempt.started_at, listening_since) > timedelta(seconds=allowed):
            return GiveUpAttempt(attempt, Loss.NEVER_HEARD, kill=True)
    return Wait()


def _allowed_to_begin(execution: SupervisedExecution, settings: SupervisionSettings) -> timedelta:
    """Once a stop was asked for. A driver that takes over from another may have epochs to commit that this one has
    prepared, so it gets a lease to begin in; the first one has nothing to finish."""
    takes_over = any(attempt.begun for attempt in execution.attempts)
    return timedelta(seconds=settings.lease_seconds if takes_over else 0)


def _after_failure(execution: SupervisedExecution, last: SupervisedAttempt, now: datetime) -> Decision:
    """What would fail again is not tried again; for the rest there is the restart strategy."""
    if permanent(last.failure):
        return EndExecution(failed=True, failure=last.failure)
    ended = [attempt.ended_at or attempt.started_at for attempt in execution.attempts]
    due = next_attempt_at(ended, execution.restart, now)
    if due is None:
        return EndExecution(failed=True, failure=last.failure)
    return Launch() if now >= due else Wait((due - now).total_seconds())


def recent_failures(ended: Sequence[datetime], strategy: RestartStrategy, now: datetime) -> int:
    """How many attempts have ended within the window; ``ended``: when each of them did."""
    return sum(moment > now - timedelta(seconds=strategy.window_seconds) for moment in ended)


def next_attempt_at(ended: Sequence[datetime], strategy: RestartStrategy, now: datetime) -> datetime | None:
    """When the next attempt begins after the last one ended; ``None``: there will be none."""
    recent = recent_failures(ended, strategy, now)
    if recent > strategy.max_restarts:
        return None
    pause = min(strategy.backoff_seconds * 2 ** max(0, recent - 1), strategy.backoff_limit_seconds)
    return ended[-1] + timedelta(seconds=pause)


class SupervisionSettings(BaseModel):
    """Times in seconds.

    ``lease``: a driver that was not heard for so long is lost. ``start``: so long a new driver may take to be heard
    first. ``stop``: so long a driver may take to stop before it is killed. ``round``: pause between two looks at
    everything; ``sweep``: between two looks at what is left on this machine of attempts that are over; ``grace``: so
    long the process of an attempt that has ended by itself may take to end, too. ``kill_lost_drivers``: switched off
    only by tests that want a lost driver to come back as a zombie.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease_seconds: float = Field(default=10.0, gt=0)
    start_seconds: float = Field(default=90.0, gt=0)
    stop_seconds: float = Field(default=120.0, gt=0)
    round_seconds: float = Field(default=0.5, gt=0)
    sweep_seconds: float = Field(default=5.0, gt=0)
    grace_seconds: float = Field(default=30.0, ge=0)
    kill_lost_drivers: bool = True
