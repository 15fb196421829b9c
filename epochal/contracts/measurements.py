"""Measurements of a driver's attempt: monotonic totals and current values.

The control plane stores the latest report of each attempt, and adds up the reports of ended attempts. Models ignore
unknown fields, since a driver may be newer than the control plane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

BOUNDS_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
"""Upper bounds of the buckets of every histogram. They never change, since histograms of attempts and versions are
added up."""

MeasuredStep = Literal["E1", "E2", "E3", "E4", "E5", "E6", "E7", "R"]
"""Steps of the epoch protocol; ``R``: R1 to R5, once per attempt."""

TaskStep = Literal["T1", "T2", "T3"]
"""Steps of a task: view and transaction, rows, pre-commit."""

EpochPart = Literal["planning", "spark", "python", "store", "sink", "protocol"]
"""Parts of an epoch's time, from the search for its input (E1) to its commit (E6); each second belongs to one part.

``planning``: the driver builds DataFrames. ``spark``: the remaining time of the job. ``python``: operators process
rows. ``store``: reads and writes of state, and the manifest. ``sink``: sinks write and commit. ``protocol``: the
remaining time. :mod:`epochal.engine.epoch_parts` has the rules for tasks that run in parallel."""

Origin = Literal["memory", "disk", "store"]
"""Where a task found state: memory of its process, cache of its machine, snapshot store."""

MOST_EPOCHS = 500
"""Maximum number of epochs in a report."""

MOST_NAMES = 200
"""Maximum number of sinks, and of sources, in a report."""

MOST_SUBTASKS = 1000
"""Maximum number of subtasks of an application that are reported one by one; with more, none is."""

SAMPLE_SECONDS = 10.0
"""Minimum length of a load sample."""

MOST_SAMPLES = 90
"""Maximum number of samples in a report: a quarter of an hour."""

Summed = TypeVar("Summed")


class Work(NamedTuple):
    """Work of an operator's subtask: the rows that it took, and its working time without waiting for input or for the
    reader of its output."""

    rows: int = 0
    busy_seconds: float = 0.0

    def plus(self, other: Work) -> Work:
        return Work(self.rows + other.rows, self.busy_seconds + other.busy_seconds)


class _Measured(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Durations(_Measured):
    """A histogram. ``counts``: by bucket of ``BOUNDS_SECONDS``, not cumulated; the last one has no upper bound."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_SECONDS) + 1)
    seconds: float = Field(default=0.0, ge=0)

    @field_validator("counts")
    @classmethod
    def _one_of_each(cls, counts: tuple[int, ...]) -> tuple[int, ...]:
        if len(counts) != len(BOUNDS_SECONDS) + 1 or any(count < 0 for count in counts):
            raise ValueError(f"a histogram has {len(BOUNDS_SECONDS) + 1} counts, none of them negative")
        return counts

    @property
    def count(self) -> int:
        return sum(self.counts)

    def __add__(self, other: Durations) -> Durations:
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return Durations(counts=counts, seconds=self.seconds + other.seconds)


class Totals(_Measured):
    """Values that only rise within an attempt."""

    epochs: Durations = Durations()
    """Durations from E1 to E6: from open to committed."""
    steps: dict[MeasuredStep, Durations] = {}
    tasks: dict[TaskStep, Durations] = {}
    """Durations per subtask of an operator or a sink, in each epoch whose handles were complete."""
    sinks: dict[str, Durations] = Field(default={}, max_length=MOST_NAMES)
    """Durations by sink, from the decision (E4) to its commit."""
    compactions: Durations = Durations()
    failed_compactions: int = Field(default=0, ge=0)
    subtasks: dict[str, tuple[Work, ...]] = Field(default={}, max_length=MOST_NAMES)
    """By operator, the work of each of its subtasks; empty if there are more than ``MOST_SUBTASKS``."""
    read_bytes: dict[Origin, int] = {}
    """Bytes of state that tasks read, by where they found them."""
    parts: dict[EpochPart, Annotated[float, Field(ge=0)]] = {}
    """Seconds of committed epochs, by part."""

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            epochs=self.epochs + other.epochs,
            steps=_added(self.steps, other.steps),
            tasks=_added(self.tasks, other.tasks),
            sinks=_added(self.sinks, other.sinks),
            compactions=self.compactions + other.compactions,
            failed_compactions=self.failed_compactions + other.failed_compactions,
            subtasks={
                name: tuple(
                    one.plus(more)
                    for one, more in zip_longest(
                        self.subtasks.get(name, ()), other.subtasks.get(name, ()), fillvalue=Work()
                    )
                )
                for name in dict.fromkeys([*self.subtasks, *other.subtasks])
            },
            read_bytes=dict(Counter(self.read_bytes) + Counter(other.read_bytes)),
            parts={
                part: self.parts.get(part, 0.0) + other.parts.get(part, 0.0)
                for part in dict.fromkeys([*self.parts, *other.parts])
            },
        )


class SourceReport(_Measured):
    """Lag of a source behind its input. ``None``: the source cannot tell.

    ``read_until``: input available at this time has been read by decided epochs. ``skipped_files``: number of missing
    files that decided epochs skipped (``missing="skip"``).
    """

    records: int | None = Field(default=None, ge=0)
    files: int | None = Field(default=None, ge=0)
    read_until: datetime | None = None
    reachable: bool = True
    skipped_files: int = Field(default=0, ge=0)

    @property
    def is_behind(self) -> bool:
        return bool(self.records or self.files)


class SubtaskLoad(_Measured):
    """Load of one subtask of an operator."""

    subtask: int = Field(ge=0)
    rows: int = Field(ge=0)
    busy_seconds: float = Field(ge=0)


class OperatorLoad(_Measured):
    """Load of an operator within the window; ``epoch_..``: in the latest epoch.

    ``skew``: rows of the subtask with the most rows (``largest``) divided by the mean over the subtasks; ``None``
    without rows. :mod:`epochal.engine.load` has the rules for ``skewed`` and ``stragglers``.
    """

    subtasks: int = Field(default=0, ge=0)
    rows: int = Field(default=0, ge=0)
    busy_seconds: float = Field(default=0.0, ge=0)
    epoch_rows: int = Field(default=0, ge=0)
    epoch_busy_seconds: float = Field(default=0.0, ge=0)
    skew: float | None = None
    skewed: bool = False
    largest: SubtaskLoad | None = None
    stragglers: tuple[SubtaskLoad, ...] = ()


class StateSize(_Measured):
    """Size of a state table's files in the latest snapshot: its bases and all later changes."""

    rows: int = Field(
        ge=0, description="Rows in the files. Rows replaced or deleted since the last compaction count, too."
    )
    bytes: int = Field(ge=0, description="Bytes of the files.")


class LoadSample(NamedTuple):
    """Work of all subtasks over some seconds: whole epochs and the time between them.

    ``busy_seconds``: of the operators with the application's parallelism. ``busy_share``: seconds of work per subtask
    and second, of all operators.
    ``lag_seconds``: largest lag of a source at the end; ``None``: no source can tell.
    """

    seconds: float
    busy_seconds: float
    lag_seconds: float | None = None
    busy_share: float = 0.0


class Load(_Measured):
    """Recent load of an application's operators, with one version and parallelism.

    ``seconds``: length of the window. ``busy_share``: seconds of work per subtask and second. ``rows_read``: rows of
    the window's epochs by source; ``rows_written``: by sink. ``samples``: consecutive, oldest first; the last one ended
    shortly before the report.
    """

    version: int | None
    parallelism: int = Field(ge=1)
    epoch: int
    seconds: float = Field(default=0.0, ge=0)
    busy_share: float = Field(default=0.0, ge=0)
    operators: dict[str, OperatorLoad] = Field(default={}, max_length=MOST_NAMES)
    rows_read: dict[str, int] = Field(default={}, max_length=MOST_NAMES)
    rows_written: dict[str, int] = Field(default={}, max_length=MOST_NAMES)
    samples: tuple[LoadSample, ...] = ()


class StragglerMove(_Measured):
    """A subtask that had been a straggler for a full window of the load, and has changed its machine in ``epoch``.

    ``exchanged_with``: the subtask that has its earlier place now; ``None``: it has taken a free one.
    """

    operator: str
    subtask: int = Field(ge=0)
    epoch: int
    origin: str
    destination: str
    exchanged_with: int | None = None


class PlacementReport(_Measured):
    """Where the subtasks of the latest epoch ran.

    ``machines``: by operator, the machine of each subtask; empty if it is unknown, or if there are more than
    ``MOST_SUBTASKS``. ``moves``: how often a subtask has changed its machine since the attempt began. ``unplaced``: the
    reason why Spark runs subtasks anywhere; ``None`` if each runs where its state is cached. ``read_bytes``: bytes of
    state that the epoch's tasks read. ``moved_stragglers``: since the attempt began, the latest ``MOST_NAMES``.
    """

    epoch: int
    machines: dict[str, tuple[str, ...]] = {}
    moves: int = Field(default=0, ge=0)
    unplaced: str | None = None
    read_bytes: dict[Origin, int] = {}
    moved_stragglers: tuple[StragglerMove, ...] = Field(default=(), max_length=MOST_NAMES)

    def moves_to(self, machines: Mapping[str, Sequence[str]]) -> int:
        """Number of subtasks that run elsewhere; none if their number has changed."""
        return sum(
            one != other
            for name, found in machines.items()
            if len(found) == len(self.machines.get(name, ()))
            for one, other in zip(self.machines[name], found, strict=True)
        )


class Moment(_Measured):
    """Values at the time of the report. Times are the driver's clock, in UTC."""

    sources: dict[str, SourceReport] = Field(default={}, max_length=MOST_NAMES)
    blocked_sinks: dict[str, datetime] = Field(default={}, max_length=MOST_NAMES)
    """Sinks whose commit of a decided epoch fails, and since when."""
    store_away_since: datetime | None = None
    """Time since which the snapshot store does not answer."""
    idle_at: datetime | None = None
    """Last time at which all input was committed."""
    state_rows: int | None = Field(default=None, ge=0)
    """Rows in the files of the latest snapshot: its bases and all later changes."""
    state_bytes: int | None = Field(default=None, ge=0)
    tables: dict[str, StateSize] = Field(default={}, max_length=MOST_NAMES)
    """By state table; empty if there are more than ``MOST_NAMES``."""
    clock_deviation_seconds: float = 0.0
    """Deviation of the driver's wall clock from its first reading plus elapsed time."""
    epoch_time_ahead_seconds: float = Field(default=0.0, ge=0)
    """Epoch time of the latest epoch minus the clock."""
    load: Load | None = None
    """``None`` before the first epoch of the attempt or version."""
    placement: PlacementReport | None = None
    """``None`` before the first epoch of the attempt."""


class TaskSeconds(_Measured):
    """Seconds that one step took in the tasks of an epoch."""

    longest: float = Field(ge=0, description="Of the task in which the step took longest.")
    total: float = Field(ge=0, description="Of all tasks together.")


class EpochDurations(_Measured):
    """Durations of an epoch's steps. Steps that have not ended, or that failed, are missing."""

    steps: dict[MeasuredStep, Annotated[float, Field(ge=0)]] = Field(
        default={},
        description="Seconds of each step of the epoch protocol, E1 to E7. E5 lasts from the decision until every sink "
        "has committed, including the time for which a sink waits.",
    )
    tasks: dict[TaskStep, TaskSeconds] = Field(
        default={}, description="Seconds of each step of the tasks (T1 to T3), all of which are part of E2."
    )
    parts: dict[EpochPart, Annotated[float, Field(ge=0)]] = Field(
        default={},
        description="Seconds of each part of the epoch's time, from the search for its input to its commit: planning, "
        "Spark, Python, snapshot store, sinks, and the protocol. The sum is the epoch's time. Empty until the epoch is "
        "committed.",
    )


class MeasuredEpoch(EpochDurations):
    """Durations of the epoch with this number."""

    epoch: int = Field(ge=0, le=2**63 - 1)


class DriverReport(_Measured):
    """A report of an attempt. ``number`` rises from report to report."""

    number: int = Field(ge=1)
    totals: Totals = Totals()
    moment: Moment = Moment()
    epochs: tuple[MeasuredEpoch, ...] = Field(default=(), max_length=MOST_EPOCHS)
    """Epochs that this attempt opened and whose durations have changed since the last report that arrived."""


def _added(first: Mapping[Summed, Durations], second: Mapping[Summed, Durations]) -> dict[Summed, Durations]:
    names = [*first, *(name for name in second if name not in first)]
    return {name: first.get(name, Durations()) + second.get(name, Durations()) for name in names}
