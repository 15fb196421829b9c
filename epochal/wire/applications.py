"""Applications, their executions and attempts, and their load."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from epochal.contracts.catalog import Failure, OpenTransaction
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.contracts.measurements import OperatorLoad, Origin, StateSize, StragglerMove
from epochal.wire.bodies import ALL_FIELDS, Answer, Body, EpochNumber, Message, Name, Open, Sha256, UtcTime
from epochal.wire.configuration import ApplicationConfiguration, ConfigurationAnswer
from epochal.wire.operations import OperationState
from epochal.wire.problems import Problem

ExecutionState = Literal["starting", "running", "stopping", "stopped", "failed"]


ApplicationState = Literal["created", "starting", "running", "stopping", "stopped", "failed"]


AttemptState = Literal["running", "ended", "lost", "failed"]


AvailableNow = Annotated[
    bool,
    Field(
        description="Process the input that is available when the execution starts, in as many epochs as the limits "
        "require, and stop, like Spark's Trigger.AvailableNow. The next start continues from there. If the driver "
        "fails, its successor processes the input that is available when it starts."
    ),
]


Drain = Annotated[
    bool,
    Field(
        description="When all sources are bounded and have ended, run a last epoch that emits everything waiting for "
        "event time (windows, unmatched rows, timers), and stop. The application cannot be started from its snapshot; "
        "the previous snapshot is kept. If false, the application stops at the end of its input and can be started "
        "again."
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
    """``epoch``, ``savepoint``, ``tag`` or ``at`` selects the snapshot; the default is the latest one. ``parameters``
    and ``configuration`` are merged over the source's. Unless ``shadow``, sinks must have other targets."""

    name: Name
    epoch: EpochNumber | None = None
    savepoint: Name | None = None
    tag: Name | None = None
    at: UtcTime | None = Field(default=None, description="Select the latest epoch committed at this time.")
    parameters: Parameters = Field(default_factory=dict)
    artifact: Sha256 | None = None
    configuration: dict[str, Any] = Field(default_factory=dict)
    shadow: bool = False
    start: bool = True
    message: Message | None = None
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Accepted differences from the snapshot, as in an upgrade.",
    )


class StartApplication(Body):
    savepoint: Name | None = Field(
        default=None, description="Start from this savepoint, on a new branch unless it is the head."
    )
    available_now: AvailableNow = False
    drain: Drain = True


class StopApplication(Body):
    savepoint: Name | None = Field(default=None, description="Name of a savepoint to create from the last epoch.")


class RestartApplication(Body):
    """A restart request; it has no fields."""


class Head(Answer):
    """The latest committed epoch."""

    branch: str
    epoch: int
    committed_at: datetime | None
    drained: bool = Field(
        description="All input has ended and has been emitted; the application cannot be started again."
    )


class Parent(Answer):
    """The snapshot that a fork started from."""

    application: str
    branch: str
    epoch: int


class ImportOrigin(Answer):
    """Origin of an import, as recorded in the bundle: the exported application and its snapshot."""

    project: str
    application: str
    epoch: int
    control_plane: str = Field(description="Id of the exporting installation.")
    exported_at: datetime
    exported_by: str
    message: str | None = Field(description="Message given at the export.")


class Restarts(Answer):
    """Failed attempts within the window of the restart strategy, and the next attempt."""

    failures: int
    allowed: int = Field(
        description="Maximum number of failures within the window; with more, the application is `failed`."
    )
    failure: Failure = Field(description="The latest failure.")
    failed_at: datetime
    next_attempt_at: datetime | None = Field(description="Null while an attempt runs, and if no attempt follows.")


class ApplicationAnswer(Answer):
    model_config = ALL_FIELDS

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
    imported_from: ImportOrigin | None = Field(description="Origin of an import, or of a fork into another project.")
    execution: str | None
    failure: Failure | None
    restarts: Restarts | None = Field(description="Null unless attempts have failed recently.")
    created_at: datetime
    updated_at: datetime


class StatusAnswer(Answer):
    """Status last reported by the driver. ``detail`` is a text for users; ``transactions`` wait for a commit of their
    sink."""

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
    """One run of a version. ``attempt`` is the latest attempt; numbers increase along the branch, across executions."""

    id: str
    application: str
    version: int
    branch: str | None = Field(
        default=None, description="Branch of its epochs. Attempts are numbered by branch. Null from older versions."
    )
    state: Open[ExecutionState]
    attempt: int
    available_now: bool = Field(description="Whether it processes the input available at its start, and ends.")
    drain: bool = Field(description="Whether a last epoch drains it when all sources have ended.")
    status: StatusAnswer | None
    heartbeat_at: datetime | None
    stop_requested_at: datetime | None = Field(description="Null unless a stop was requested.")
    started_at: datetime
    ended_at: datetime | None
    attempts: list[AttemptAnswer]


LifecycleKind = Literal["start", "stop", "restart", "upgrade", "rescale", "rollback", "rekey", "recovery"]


class RunSettings(Answer):
    """A version of an application and its number of subtasks. ``parallelisms``: of operators with another number."""

    version: int
    parallelism: int
    parallelisms: dict[str, int]


class LifecycleItem(Answer):
    """A change of what runs: an operation, or a recovery, in which a new driver replaced a failed or lost one."""

    model_config = ALL_FIELDS

    kind: Open[LifecycleKind]
    operation: str | None = Field(description="Id of the operation; null for a recovery.")
    execution: str | None
    attempt: int | None = Field(description="Number of the new attempt of a recovery; null for operations.")
    state: Open[OperationState]
    by: str | None = Field(description="The token that requested the operation, or `autoscaler`; null for a recovery.")
    message: str | None = Field(description="The message of the request; for autoscaling, the reason.")
    cause: Failure | None = Field(description="Why the attempt before a recovery ended; null for operations.")
    error: Problem | None = Field(description="Why the operation failed.")
    before: RunSettings | None = Field(description="The preceding version, of an upgrade or a rescale; otherwise null.")
    after: RunSettings | None = Field(description="The new version, of an upgrade or a rescale; otherwise null.")
    began_at: datetime = Field(description="Time of the request; for a recovery, the end of the attempt before it.")
    ended_at: datetime | None = Field(
        description="Time at which the operation ended; for a recovery, at which the new driver took over."
    )
    seconds: float | None = Field(description="From `began_at` to `ended_at`; null while it is in progress.")


class AutoscalingDecision(Answer):
    """Decision of autoscaling. ``parallelism`` and ``parallelisms`` are null and empty if nothing is rescaled."""

    parallelism: int | None
    parallelisms: dict[str, int] = Field(default_factory=dict, description="New subtasks of single operators, by name.")
    reason: str


class SourceLag(Answer):
    """Lag of a source behind its input. A value that the source cannot tell is null."""

    records: int | None = Field(description="Available records that no decided epoch has read.")
    files: int | None = Field(description="Available files that no decided epoch has read.")
    seconds: float | None = Field(
        description="Time since everything that was available had been read, or 0; null until the execution has caught "
        "up once."
    )
    reachable: bool = Field(description="False if the source's system does not answer.")


class SourceLoad(SourceLag):
    """Lag of a source and its rows in the measured window."""

    rows: int | None = Field(description="Rows read in the window; null before the second epoch of the attempt.")


class SinkLoad(Answer):
    """Rows of a sink in the measured window, and whether it blocks."""

    rows: int | None = Field(description="Rows written in the window; null before the second epoch of the attempt.")
    blocked_since: datetime | None = Field(
        description="Time since which its commits fail, so that later epochs wait for it; null if it does not block."
    )


class ApplicationLag(Answer):
    """Lag of the sources of an application, its rate and what it waits for, as last reported by its driver."""

    model_config = ALL_FIELDS

    application: str
    reported_at: datetime | None = Field(description="Null unless a driver runs that has reported.")
    sources: dict[str, SourceLag] = Field(description="By name; at most 200.")
    rows_per_second: float | None = Field(
        default=None,
        description="Mean number of rows read per second from all sources within the last minute; null before the "
        "second epoch of the attempt.",
    )
    blocked_sinks: dict[str, datetime] = Field(
        default_factory=dict,
        description="Sinks whose commits fail, and since when; later epochs wait for them.",
    )
    store_away_since: datetime | None = Field(
        default=None, description="Time since which the snapshot store does not answer; null if it answers."
    )


class PlacementAnswer(Answer):
    """Where the subtasks of a running application ran in its latest epoch, as last reported by its driver."""

    model_config = ALL_FIELDS

    application: str
    reported_at: datetime | None = Field(description="Null before the first report of the running attempt.")
    epoch: int | None = Field(description="The latest measured epoch; null if there is none.")
    machines: dict[str, tuple[str, ...]] = Field(
        description="By operator, the machine of each subtask, known by the name of its cache. Empty if it is unknown."
    )
    moves: int = Field(description="How often a subtask has changed its machine since the attempt began.")
    unplaced: str | None = Field(
        description="The reason why Spark runs subtasks on any machine; null if each runs where its state is cached."
    )
    read_bytes: dict[Origin, int] = Field(
        description="Bytes of state that the tasks of the epoch read from the memory of their process, from the cache "
        "of their machine (disk), and from the snapshot store."
    )
    moved_stragglers: tuple[StragglerMove, ...] = Field(
        description="Subtasks that moved to another machine since the attempt began, because they had worked much "
        "longer than others without more rows."
    )


class LoadAnswer(Answer):
    """Recent load of a running application's operators, as last reported by its driver."""

    model_config = ALL_FIELDS

    application: str
    reported_at: datetime | None = Field(description="Null before the first report of the running attempt.")
    version: int | None
    parallelism: int
    epoch: int | None = Field(description="The latest measured epoch; null if there is none.")
    seconds: float = Field(description="Length of the measured window, which ended with the report.")
    busy_share: float = Field(
        description="Busy time of all operators in the window, per subtask and second; 0 without `operators`."
    )
    lag_seconds: float | None = Field(
        description="Lag of the source that is furthest behind; null if no source reports its lag."
    )
    operators: dict[str, OperatorLoad] = Field(
        description="By name. Empty while the window has no epoch, as before the second epoch of the attempt."
    )
    sources: dict[str, SourceLoad] = Field(default_factory=dict, description="By name; at most 200.")
    sinks: dict[str, SinkLoad] = Field(default_factory=dict, description="By name; at most 200.")
    tables: dict[str, StateSize] = Field(
        default_factory=dict, description="Size of each state table's files; empty with more than 200 tables."
    )
    store_away_since: datetime | None = Field(
        default=None, description="Time since which the snapshot store does not answer; null if it answers."
    )
    autoscaling: AutoscalingDecision | None = Field(
        description="Null if autoscaling is off or the application does not run."
    )
