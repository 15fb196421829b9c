from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from epochal.contracts.catalog import Failure, OpenTransaction
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.contracts.measurements import OperatorLoad
from epochal.wire.bodies import ALL_SAID, Answer, Body, EpochNumber, Message, Name, Open, Sha256, UtcTime
from epochal.wire.configuration import ApplicationConfiguration, ConfigurationAnswer

ExecutionState = Literal["starting", "running", "stopping", "stopped", "failed"]


ApplicationState = Literal["created", "starting", "running", "stopping", "stopped", "failed"]


AttemptState = Literal["running", "ended", "lost", "failed"]


AvailableNow = Annotated[
    bool,
    Field(
        description="Take what the sources have when the execution starts, in as many epochs as the limits demand, "
        "commit it, and stop; the next start goes on from there. As Spark's Trigger.AvailableNow. A driver that is "
        "lost on the way is replaced by one that takes what the sources have by then."
    ),
]


Drain = Annotated[
    bool,
    Field(
        description="When all sources are bounded and at their end: run a last epoch, in which everything that waits "
        "for event time comes out (windows, rows without a partner, timers), and stop. Nothing can go on from its "
        "snapshot; the one before is kept. Without, it stops at the end of its input, and the next start goes on."
    ),
]


class CreateApplication(Body):
    name: Name
    artifact: Sha256
    parameters: Parameters = Field(default_factory=dict)
    configuration: ApplicationConfiguration = ApplicationConfiguration()
    start: bool = True
    available_now: AvailableNow = False
    drain: Drain = True


class ForkApplication(Body):
    """One of ``epoch``, ``savepoint``, ``tag`` and ``at`` says of which snapshot; without, it is the latest one.
    ``parameters`` and ``configuration`` are merged over the source's. Sinks must go elsewhere, unless ``shadow``."""

    name: Name
    epoch: EpochNumber | None = None
    savepoint: Name | None = None
    tag: Name | None = None
    at: UtcTime | None = Field(default=None, description="Of the latest epoch that was committed by then.")
    parameters: Parameters = Field(default_factory=dict)
    artifact: Sha256 | None = None
    configuration: dict[str, Any] = Field(default_factory=dict)
    shadow: bool = False
    start: bool = True
    message: Message | None = None
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Differences from the snapshot that the fork accepts by name, as in an upgrade.",
    )


class StartApplication(Body):
    savepoint: Name | None = Field(
        default=None, description="Start from this savepoint, on a new branch unless it is the head."
    )
    available_now: AvailableNow = False
    drain: Drain = True


class StopApplication(Body):
    savepoint: Name | None = Field(default=None, description="Make this savepoint of the last epoch.")


class RestartApplication(Body):
    """No fields yet."""


class Head(Answer):
    """The latest committed epoch."""

    branch: str
    epoch: int
    committed_at: datetime | None
    drained: bool = Field(description="All input had ended, and everything that waited came out: nothing can follow.")


class Parent(Answer):
    """The snapshot that a fork started from."""

    application: str
    branch: str
    epoch: int


class ImportOrigin(Answer):
    """The snapshot that an import began with: whose it was where its bundle was made, as the bundle says."""

    project: str
    application: str
    epoch: int
    control_plane: str = Field(description="An id; imports from one installation have the same.")
    exported_at: datetime
    exported_by: str
    message: str | None = Field(description="What was said at the export.")


class Restarts(Answer):
    """Attempts of what is under way that failed within the restart strategy's window, and what comes next."""

    failures: int
    allowed: int = Field(description="With more failures than that within the window the application is `failed`.")
    failure: Failure = Field(description="The last one.")
    failed_at: datetime
    next_attempt_at: datetime | None = Field(description="Unset while an attempt runs, and when there will be none.")


class ApplicationAnswer(Answer):
    model_config = ALL_SAID

    name: str
    project: str
    revision: str = Field(
        description="Changes with each version, start, stop, rollback, rekey and deletion, but not with committed "
        "epochs. Also the application's ETag, for `If-Match`."
    )
    state: Open[ApplicationState]
    detail: str | None
    branch: str
    version: int
    artifact: str
    parameters: Parameters
    configuration: ConfigurationAnswer
    shadow: bool
    head: Head | None
    parent: Parent | None
    imported_from: ImportOrigin | None = Field(
        description="Where an import came from; of a fork into another project, the source."
    )
    execution: str | None
    failure: Failure | None
    restarts: Restarts | None = Field(description="Unset unless attempts have failed lately.")
    created_at: datetime
    updated_at: datetime


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


class AutoscalingDecision(Answer):
    """What autoscaling makes of it: ``parallelism`` is set where it is about to rescale."""

    parallelism: int | None
    reason: str


class LoadAnswer(Answer):
    """How busy the operators of an application that runs were lately, as its driver has last reported."""

    model_config = ALL_SAID

    application: str
    reported_at: datetime | None = Field(description="Unset before the first report of the attempt that runs.")
    version: int | None
    parallelism: int
    epoch: int | None = Field(description="The latest epoch that was measured; unset where none was.")
    seconds: float = Field(description="The length of the window, which ended with the report.")
    busy_share: float = Field(description="Seconds of work of all operators in it, by subtask and second.")
    lag_seconds: float | None = Field(
        description="How far the source that is furthest behind was; unset where none can say."
    )
    operators: dict[str, OperatorLoad]
    autoscaling: AutoscalingDecision | None = Field(description="Unset where it is switched off, or nothing runs.")
