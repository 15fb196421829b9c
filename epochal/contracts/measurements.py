"""What a driver has measured of its attempt: sums that only rise, and what is true at the moment.

The control plane keeps the latest report of an attempt, and adds up those of attempts that are over. Models ignore what
they do not know, since a driver may be newer than the control plane that it reports to.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import zip_longest
from typing import Final, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

BOUNDS_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
"""Upper bounds of the buckets of every histogram. Sums over attempts and versions rely on them: they stay."""

MeasuredStep = Literal["E1", "E2", "E3", "E4", "E5", "E6", "E7", "R"]
"""Steps of the epoch protocol; ``R``: R1 to R5, once in an attempt."""

TaskStep = Literal["T1", "T2", "T3"]
"""Steps of a task: its view and its transaction, its rows, its pre-commit."""

MOST_NAMES = 200
"""So many sinks, or sources, of an application are reported."""

MOST_SUBTASKS = 1000
"""Of so many subtasks of an application's operators each is counted by itself; where there are more, none is."""

SAMPLE_SECONDS = 10.0
"""What an application does is summed up over at least so long."""

MOST_SAMPLES = 90
"""So many sums are kept and reported: a quarter of an hour."""

Summed = TypeVar("Summed")


class Work(NamedTuple):
    """What a subtask of an operator did: the rows that it took, and how long it worked, without waiting for them or for
    whoever took its output."""

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
    """What only rises within an attempt."""

    epochs: Durations = Durations()
    """From E1 to E6: opened until committed."""
    steps: dict[MeasuredStep, Durations] = {}
    tasks: dict[TaskStep, Durations] = {}
    """Of each subtask of an operator or a sink in each epoch whose answers were complete."""
    sinks: dict[str, Durations] = Field(default={}, max_length=MOST_NAMES)
    """By sink, from the decision (E4) until it has committed."""
    compactions: Durations = Durations()
    failed_compactions: int = Field(default=0, ge=0)
    subtasks: dict[str, tuple[Work, ...]] = Field(default={}, max_length=MOST_NAMES)
    """By operator, of each of its subtasks; empty where there are more than ``MOST_SUBTASKS``."""

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
        )


class SourceReport(_Measured):
    """How far a source is behind what its place has, as far as it can say. ``None``: it cannot.

    ``read_until``: what was there then has been read in epochs that are decided. ``skipped_files``: files that decided
    epochs record as missing, of a source of files with ``missing="skip"``.
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
    """One subtask among those of its operator."""

    subtask: int = Field(ge=0)
    rows: int = Field(ge=0)
    busy_seconds: float = Field(ge=0)


class OperatorLoad(_Measured):
    """What the subtasks of an operator did within the window; ``epoch_..``: in the latest epoch.

    ``skew``: the rows of the subtask that had the most (``largest``) against their mean over the subtasks; ``None``
    without rows. ``skewed`` and ``stragglers`` as :mod:`epochal.engine.load` has the rules.
    """

    rows: int = Field(default=0, ge=0)
    busy_seconds: float = Field(default=0.0, ge=0)
    epoch_rows: int = Field(default=0, ge=0)
    epoch_busy_seconds: float = Field(default=0.0, ge=0)
    skew: float | None = None
    skewed: bool = False
    largest: SubtaskLoad | None = None
    stragglers: tuple[SubtaskLoad, ...] = ()


class LoadSample(NamedTuple):
    """What all subtasks did together within some seconds: whole epochs, and what was between them.

    ``lag_seconds``: how far the source that was furthest behind was then; ``None``: no source can say.
    """

    seconds: float
    busy_seconds: float
    lag_seconds: float | None = None


class Load(_Measured):
    """How busy the operators of an application were lately, with one version and one parallelism.

    ``seconds``: the length of the window. ``busy_share``: the seconds of work of all operators, by subtask and second.
    ``samples``: one after the other, oldest first; the last one ended a moment before the report.
    """

    version: int | None
    parallelism: int = Field(ge=1)
    epoch: int
    seconds: float = Field(default=0.0, ge=0)
    busy_share: float = Field(default=0.0, ge=0)
    operators: dict[str, OperatorLoad] = Field(default={}, max_length=MOST_NAMES)
    samples: tuple[LoadSample, ...] = ()


class Moment(_Measured):
    """What is true when the report is made. Times are the driver's clock, in UTC."""

    sources: dict[str, SourceReport] = Field(default={}, max_length=MOST_NAMES)
    blocked_sinks: dict[str, datetime] = Field(default={}, max_length=MOST_NAMES)
    """Sinks that do not take a decided epoch, since when."""
    idle_at: datetime | None = None
    """When there was last nothing to do: all that had come was committed."""
    state_rows: int | None = Field(default=None, ge=0)
    """In the files of the latest snapshot: bases, and each change since."""
    state_bytes: int | None = Field(default=None, ge=0)
    clock_deviation_seconds: float = 0.0
    """The driver's wall clock minus its first reading and the time that has elapsed since."""
    epoch_time_ahead_seconds: float = Field(default=0.0, ge=0)
    """Epoch time of the latest epoch minus the clock."""
    load: Load | None = None
    """``None`` before the first epoch of the attempt or version."""


class DriverReport(_Measured):
    """``number`` rises from report to report of an attempt."""

    number: int = Field(ge=1)
    totals: Totals = Totals()
    moment: Moment = Moment()


def _added(first: Mapping[Summed, Durations], second: Mapping[Summed, Durations]) -> dict[Summed, Durations]:
    names = [*first, *(name for name in second if name not in first)]
    return {name: first.get(name, Durations()) + second.get(name, Durations()) for name in names}
