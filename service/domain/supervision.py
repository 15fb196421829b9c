"""Supervision decisions for one execution: a pure function of the catalog, the state of the process, and time; and the
restart strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from pydantic import BaseModel, ConfigDict, Field

from epochal.contracts.catalog import Failure
from epochal.service.domain.executions import SupervisedAttempt, SupervisedExecution
from epochal.service.domain.failures import ended_by_outage, permanent
from epochal.wire.configuration import RestartStrategy


class Process(Enum):
    """Knowledge about an attempt's process."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    """Not recorded: the control plane ended between launching it and recording it."""
    ELSEWHERE = "elsewhere"
    """On another machine; only its heartbeats are known here."""


class Loss(Enum):
    """Reason why an attempt is abandoned."""

    GONE = "its process has terminated"
    NOT_HEARD = "its heartbeat timed out"
    NEVER_HEARD = "it never sent a heartbeat"
    NOT_STOPPED = "it did not stop in time"
    NOT_BEGUN = "a stop was requested before its driver had begun"


@dataclass(frozen=True)
class Wait:
    """No action. ``seconds``: time until the next one, if known."""

    seconds: float | None = None


@dataclass(frozen=True)
class Launch:
    """Start the next attempt."""


@dataclass(frozen=True)
class GiveUpAttempt:
    """End the running attempt; kill the rest of its process."""

    attempt: SupervisedAttempt
    loss: Loss
    kill: bool


@dataclass(frozen=True)
class EndExecution:
    """Start no further attempt."""

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
    """The next action for ``execution``. ``process`` is that of its last attempt.

    All times, including ``now``, are by the database clock; ``now`` is the time at which the catalog was read.
    ``listening_since``: start of the period in which heartbeats could arrive without interruption. Missing heartbeats
    before it prove nothing: this control plane did not lead, was suspended, or the catalog was not writable.
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
        # A process that was never recorded may not exist: it has the time of a lease to send a heartbeat, not that of a
        # start.
        allowed = settings.lease_seconds if process is Process.UNKNOWN else settings.start_seconds
        if now - max(attempt.started_at, listening_since) > timedelta(seconds=allowed):
            return GiveUpAttempt(attempt, Loss.NEVER_HEARD, kill=True)
    return Wait()


def _allowed_to_begin(execution: SupervisedExecution, settings: SupervisionSettings) -> timedelta:
    """Time to begin after a stop was requested. A driver that succeeds another may have to commit epochs prepared by
    it, and gets the time of a lease; the first driver has nothing to complete."""
    takes_over = any(attempt.begun for attempt in execution.attempts)
    return timedelta(seconds=settings.lease_seconds if takes_over else 0)


def _after_failure(execution: SupervisedExecution, last: SupervisedAttempt, now: datetime) -> Decision:
    """Permanent failures end the execution; others are handled by the restart strategy."""
    if permanent(last.failure):
        return EndExecution(failed=True, failure=last.failure)
    counted = [attempt for attempt in execution.attempts if not ended_by_outage(attempt.failure)]
    ended = [attempt.ended_at or attempt.started_at for attempt in counted]
    due = next_attempt_at(last.ended_at or last.started_at, ended, execution.restart, now)
    if due is None:
        return EndExecution(failed=True, failure=last.failure)
    return Launch() if now >= due else Wait((due - now).total_seconds())


def recent_failures(ended: Sequence[datetime], strategy: RestartStrategy, now: datetime) -> int:
    """Number of attempts that ended within the window. ``ended``: the times at which they ended."""
    return sum(moment > now - timedelta(seconds=strategy.window_seconds) for moment in ended)


def next_attempt_at(
    last: datetime, ended: Sequence[datetime], strategy: RestartStrategy, now: datetime
) -> datetime | None:
    """Time of the next attempt after the one that ended at ``last``; ``None`` if the restarts are exhausted.

    ``ended``: end of each attempt that counts, oldest first. Attempts that ended because the store does not answer do
    not count.
    """
    recent = recent_failures(ended, strategy, now)
    if recent > strategy.max_restarts:
        return None
    pause = min(strategy.backoff_seconds * 2 ** max(0, recent - 1), strategy.backoff_limit_seconds)
    return last + timedelta(seconds=pause)


class SupervisionSettings(BaseModel):
    """Times in seconds.

    ``lease``: heartbeat timeout of a driver. ``start``: timeout for the first heartbeat. ``stop``: time after which a
    stopping driver is killed. ``round``: interval between two rounds over all executions. ``sweep``: interval between
    two searches for local processes whose attempts are over. ``grace``: time that the process of such an attempt has to
    terminate. ``kill_lost_drivers``: false only in tests that resume a lost driver as a zombie.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease_seconds: float = Field(default=10.0, gt=0)
    start_seconds: float = Field(default=90.0, gt=0)
    stop_seconds: float = Field(default=120.0, gt=0)
    round_seconds: float = Field(default=0.5, gt=0)
    sweep_seconds: float = Field(default=5.0, gt=0)
    grace_seconds: float = Field(default=30.0, ge=0)
    kill_lost_drivers: bool = True
