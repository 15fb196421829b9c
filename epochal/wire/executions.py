from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from epochal.contracts.catalog import Failure, OpenTransaction
from epochal.wire.bodies import Answer, Open
from epochal.wire.states import AttemptState, ExecutionState


class StatusAnswer(Answer):
    """What the driver last said of itself. ``detail`` is for people; ``transactions`` wait for their sinks' commit."""

    phase: Open[Literal["starting", "recovering", "running", "waiting", "stopping", "stopped", "failed"]]
    detail: str | None = None
    epoch: int | None = None
    transactions: tuple[OpenTransaction, ...] = ()


class AttemptAnswer(Answer):
    number: int
    state: Open[AttemptState]
    started_at: datetime
    ended_at: datetime | None
    failure: Failure | None
    process: str | None


class ExecutionAnswer(Answer):
    """One run of a version. ``attempt`` is its latest; numbers rise along the branch, also across executions."""

    id: str
    application: str
    version: int
    state: Open[ExecutionState]
    attempt: int
    available_now: bool = Field(description="It takes what its sources have when it starts, and ends.")
    drain: bool = Field(description="When all of its sources are bounded and at their end, a last epoch drains it.")
    status: StatusAnswer | None
    heartbeat_at: datetime | None
    stop_requested_at: datetime | None = Field(description="Unset where it ended by itself.")
    started_at: datetime
    ended_at: datetime | None
    attempts: list[AttemptAnswer]
