"""Measurements of a running attempt. Costs a few microseconds per epoch."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import numpy as np

from epochal.contracts.measurements import (
    BOUNDS_SECONDS,
    MOST_EPOCHS,
    MOST_NAMES,
    MOST_SUBTASKS,
    DriverReport,
    Durations,
    EpochPart,
    MeasuredEpoch,
    MeasuredStep,
    Moment,
    Origin,
    PlacementReport,
    SourceReport,
    StateSize,
    TaskSeconds,
    TaskStep,
    Totals,
    Work,
)
from epochal.contracts.source import Source
from epochal.engine.epoch_parts import EpochTime, JobTime
from epochal.engine.load import Figures, RecentLoad, figures_of

_MOST_MARKS = 512
_REMEMBERED_EPOCHS = 4 * MOST_EPOCHS
"""Maximum number of epochs whose durations wait for further steps or for a report."""


class _Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self._seconds += seconds

    def report(self) -> Durations:
        return Durations(counts=tuple(self._counts), seconds=self._seconds)


@dataclass
class _Reading:
    """Lag of one source. A mark has a time and the total amount of input at that time, in the source's unit, counted
    from the start of the attempt.

    The input at a mark has been read when the accepted amount reaches the mark's.
    """

    behind: int | None = None
    accepted: int = 0
    marks: list[tuple[datetime, int]] = field(default_factory=list)
    apart: timedelta = timedelta(0)
    report: SourceReport = field(default_factory=SourceReport)

    def looked(self, source: Source, reachable: bool, now: datetime) -> None:
        backlog = source.backlog()
        self.behind = backlog.amount
        read_until = self.report.read_until
        if reachable and self.behind is not None:
            there = self.accepted + self.behind
            if self.behind == 0:
                self.marks.clear()
                read_until = now
            elif self.marks and (self.marks[-1][1] == there or self._is_close(now)):
                self.marks[-1] = (now, there)
            else:
                self.marks.append((now, there))
        self.report = SourceReport(
            records=backlog.records,
            files=backlog.files,
            read_until=read_until,
            reachable=reachable,
            skipped_files=backlog.skipped,
        )

    def lag_seconds(self, now: datetime) -> float | None:
        """Time since all then existing input had been read; a lower bound if this is not known of this attempt."""
        if not self.behind:
            return None if self.behind is None else 0.0
        since = self.report.read_until or (self.marks[0][0] if self.marks else None)
        return None if since is None else max(0.0, (now - since).total_seconds())

    def _is_close(self, now: datetime) -> bool:
        """Thin out marks when there are many. Fewer marks can only overestimate the lag."""
        if len(self.marks) > _MOST_MARKS:
            self.apart = 2 * (self.marks[-1][0] - self.marks[0][0]) / _MOST_MARKS
            del self.marks[1::2]
        elif len(self.marks) < 2:
            self.apart = timedelta(0)
        return len(self.marks) > 1 and now - self.marks[-2][0] < self.apart

    def took(self, source: Source) -> None:
        backlog = source.backlog()
        if self.behind is not None and backlog.amount is not None:
            self.accepted += max(0, self.behind - backlog.amount)
        self.behind = backlog.amount
        read_until = self.report.read_until
        while self.marks and self.marks[0][1] <= self.accepted:
            read_until, _ = self.marks.pop(0)
        self.report = self.report.model_copy(
            update={
                "records": backlog.records,
                "files": backlog.files,
                "read_until": read_until,
                "skipped_files": backlog.skipped,
            }
        )


class _EpochTimes:
    """Durations of epochs, kept until their last step has been reported. Not thread-safe."""

    def __init__(self) -> None:
        self._epochs: dict[int, MeasuredEpoch] = {}
        self._changed: dict[int, None] = {}
        self._running: dict[int, EpochTime] = {}

    def took(self, epoch: int, step: MeasuredStep, seconds: float) -> None:
        """E1 begins an epoch. Epochs that an earlier attempt opened are not measured."""
        if step == "E1":
            self._epochs[epoch], self._running[epoch] = MeasuredEpoch(epoch=epoch), EpochTime()
            for oldest in list(self._epochs)[:-_REMEMBERED_EPOCHS]:
                del self._epochs[oldest]
                self._changed.pop(oldest, None)
                self._running.pop(oldest, None)
        if (known := self._epochs.get(epoch)) is not None:
            self._change(known.model_copy(update={"steps": {**known.steps, step: round(seconds, 6)}}))

    def tasks_took(self, epoch: int, tasks: Mapping[TaskStep, TaskSeconds]) -> None:
        if (known := self._epochs.get(epoch)) is not None:
            self._change(known.model_copy(update={"tasks": dict(tasks)}))

    def running(self, epoch: int) -> EpochTime:
        return self._running.get(epoch, EpochTime())

    def published(self, epoch: int, seconds: float, in_sinks: float) -> dict[EpochPart, float]:
        """The parts of the epoch's time; empty if it is not measured."""
        time, known = self._running.pop(epoch, None), self._epochs.get(epoch)
        if time is None or known is None:
            return {}
        parts = time.parts(seconds, known.steps.get("E2", 0.0), in_sinks)
        self._change(known.model_copy(update={"parts": {part: round(spent, 6) for part, spent in parts.items()}}))
        return parts

    def _change(self, measured: MeasuredEpoch) -> None:
        self._epochs[measured.epoch] = measured
        self._changed[measured.epoch] = None

    def report(self) -> tuple[MeasuredEpoch, ...]:
        return tuple(self._epochs[epoch] for epoch in list(self._changed)[:MOST_EPOCHS])

    def reported(self, epochs: Iterable[MeasuredEpoch]) -> None:
        for measured in epochs:
            if self._epochs.get(measured.epoch) != measured:
                continue  # a further step has ended in the meantime
            self._changed.pop(measured.epoch, None)
            if "E7" in measured.steps:
                del self._epochs[measured.epoch]


class Meter:
    """Measurements of an attempt. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._epochs = _Histogram()
        self._epoch_times = _EpochTimes()
        self._steps: dict[MeasuredStep, _Histogram] = {}
        self._tasks: dict[TaskStep, _Histogram] = {}
        self._sinks: dict[str, _Histogram] = {}
        self._compactions = _Histogram()
        self._failed_compactions = 0
        self._readings: dict[str, _Reading] = {}
        self._subtasks: dict[str, Figures] = {}
        self._read_bytes: Counter[Origin] = Counter()
        self._parts: dict[EpochPart, float] = {}
        self._placement: PlacementReport | None = None
        self._load = RecentLoad(clock)
        self._blocked: Mapping[str, datetime] = {}
        self._store_away: datetime | None = None
        self._idle_at: datetime | None = None
        self._sizes: Callable[[], Mapping[str, StateSize]] | None = None
        self._clocks: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        self._reports = 0

    @contextmanager
    def step(self, step: MeasuredStep, epoch: int | None = None, before: float = 0.0) -> Iterator[None]:
        """Measure the block as a step, of this epoch; ``before``: seconds already spent on it. Not counted if the block
        raises."""
        began = self.clock()
        yield
        self.took(step, before + self.clock() - began, epoch)
        if before and epoch is not None:
            with self._lock:
                self._epoch_times.running(epoch).before = before

    def took(self, step: MeasuredStep, seconds: float, epoch: int | None = None) -> None:
        with self._lock:
            self._steps.setdefault(step, _Histogram()).observe(seconds)
            if epoch is not None:
                self._epoch_times.took(epoch, step, seconds)

    @contextmanager
    def storing(self, epoch: int) -> Iterator[None]:
        """Count the block as the driver's work on the snapshot store in this epoch, unless it raises."""
        began = self.clock()
        yield
        with self._lock:
            self._epoch_times.running(epoch).stored += self.clock() - began

    def job_ran(self, epoch: int, job: JobTime) -> None:
        """Set the parts of an epoch's E2."""
        with self._lock:
            self._epoch_times.running(epoch).job = job

    def tasks_took(self, epoch: int, tasks: Iterable[Mapping[TaskStep, float]]) -> None:
        """Add the durations of the steps of an epoch's tasks."""
        found: dict[TaskStep, list[float]] = {}
        for task in tasks:
            for step, seconds in task.items():
                found.setdefault(step, []).append(seconds)
        with self._lock:
            for step, durations in found.items():
                histogram = self._tasks.setdefault(step, _Histogram())
                for seconds in durations:
                    histogram.observe(seconds)
            summed = {
                step: TaskSeconds(longest=round(max(durations), 6), total=round(sum(durations), 6))
                for step, durations in found.items()
            }
            self._epoch_times.tasks_took(epoch, summed)

    def ran_on(self, ran: PlacementReport) -> None:
        """Add where the subtasks of an epoch ran, and the bytes of state that they read. Counts their moves."""
        with self._lock:
            self._read_bytes.update(ran.read_bytes)
            before = self._placement
            moves = before.moves + before.moves_to(ran.machines) if before else 0
            self._placement = ran.model_copy(update={"moves": moves})

    def operators_worked(
        self,
        epoch: int,
        version: int | None,
        parallelism: int,
        work: Mapping[str, Sequence[Work]],
        read: Mapping[str, int] = MappingProxyType({}),
        written: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Add the work of each subtask in an epoch, by operator; rows read, by source; rows written, by sink."""
        with self._lock:
            for name, subtasks in work.items():
                figures, before = figures_of(subtasks), self._subtasks.get(name)
                if before is not None and len(before) < len(figures):
                    before = np.pad(before, ((0, len(figures) - len(before)), (0, 0)))
                if before is not None:
                    before[: len(figures)] += figures
                self._subtasks[name] = figures if before is None else before
            self._load.ran(epoch, version, parallelism, work, read, written)

    def committed(self, sink: str, seconds: float) -> None:
        """Add a commit of one sink (E5): seconds since the decision."""
        with self._lock:
            self._sinks.setdefault(sink, _Histogram()).observe(seconds)

    def published(self, seconds: float, epoch: int | None = None, in_sinks: float = 0.0) -> None:
        """Add a published epoch (E6): seconds since this attempt opened it. ``in_sinks``: the seconds of E5 that its
        sinks took."""
        with self._lock:
            self._epochs.observe(seconds)
            if epoch is not None:
                for part, spent in self._epoch_times.published(epoch, seconds, in_sinks).items():
                    self._parts[part] = self._parts.get(part, 0.0) + spent

    def compacted(self, seconds: float | None) -> None:
        """Add a compaction; ``None``: it failed."""
        with self._lock:
            if seconds is None:
                self._failed_compactions += 1
            else:
                self._compactions.observe(seconds)

    def looked(self, sources: Mapping[str, Source], away: Collection[str] = ()) -> None:
        """Update the lags after all sources have looked for input, between epochs. ``away``: those that do not
        answer."""
        now = datetime.now(UTC)
        with self._lock:
            self._load.between_epochs(lambda: self._lag_seconds(now))
            for name, source in sources.items():
                self._readings.setdefault(name, _Reading()).looked(source, name not in away, now)
            for name in self._readings.keys() - sources.keys():
                del self._readings[name]

    def _lag_seconds(self, now: datetime) -> float | None:
        found = [seconds for reading in self._readings.values() if (seconds := reading.lag_seconds(now)) is not None]
        return max(found, default=None)

    def accepted(self, name: str, source: Source) -> None:
        """Update the lag after a slice of the source was decided."""
        with self._lock:
            if name in self._readings:
                self._readings[name].took(source)

    def blocked(self, sinks: Mapping[str, datetime]) -> None:
        """Set the sinks whose commits fail, and since when."""
        self._blocked = dict(sinks)

    def store_away(self, since: datetime | None) -> None:
        """Set the time since which the snapshot store does not answer; ``None``: it answers."""
        self._store_away = since

    def idle(self) -> None:
        """Record that all input is committed and there is no new input."""
        with self._lock:
            if all(reading.report.reachable for reading in self._readings.values()):
                self._idle_at = datetime.now(UTC)

    def sized(self, sizes: Callable[[], Mapping[str, StateSize]]) -> None:
        """Set the function that returns the size of each state table's files; called for each report."""
        self._sizes = sizes

    def timed(self, clocks: Callable[[], tuple[float, float]]) -> None:
        """Set the function that returns the deviation of the wall clock and the lead of epoch time, in seconds."""
        self._clocks = clocks

    def lasting_stragglers(self) -> dict[str, list[int]]:
        """Subtasks that have been slow for a while, by operator; see :class:`epochal.engine.load.RecentLoad`."""
        with self._lock:
            return self._load.lasting_stragglers

    def reported(self, report: DriverReport) -> None:
        """Record that a report has arrived: the next one repeats none of its epochs."""
        with self._lock:
            self._epoch_times.reported(report.epochs)

    def report(self) -> DriverReport:
        deviation, ahead = self._clocks()
        tables = None if self._sizes is None else self._sizes()
        with self._lock:
            self._reports += 1
            totals = Totals(
                epochs=self._epochs.report(),
                steps={step: histogram.report() for step, histogram in self._steps.items()},
                tasks={step: histogram.report() for step, histogram in self._tasks.items()},
                sinks={name: histogram.report() for name, histogram in list(self._sinks.items())[:MOST_NAMES]},
                compactions=self._compactions.report(),
                failed_compactions=self._failed_compactions,
                subtasks=self._counted_subtasks(),
                read_bytes=dict(self._read_bytes),
                parts=dict(self._parts),
            )
            moment = Moment(
                sources={name: reading.report for name, reading in list(self._readings.items())[:MOST_NAMES]},
                blocked_sinks=dict(list(self._blocked.items())[:MOST_NAMES]),
                store_away_since=self._store_away,
                idle_at=self._idle_at,
                state_rows=None if tables is None else sum(table.rows for table in tables.values()),
                state_bytes=None if tables is None else sum(table.bytes for table in tables.values()),
                tables=dict(tables) if tables is not None and len(tables) <= MOST_NAMES else {},
                clock_deviation_seconds=deviation,
                epoch_time_ahead_seconds=ahead,
                load=self._load.report(),
                placement=self._reported_placement(),
            )
            epochs = self._epoch_times.report()
            return DriverReport(number=self._reports, totals=totals, moment=moment, epochs=epochs)

    def _reported_placement(self) -> PlacementReport | None:
        found = self._placement
        if found is None or sum(map(len, found.machines.values())) <= MOST_SUBTASKS:
            return found
        return found.model_copy(update={"machines": {}})

    def _counted_subtasks(self) -> dict[str, tuple[Work, ...]]:
        if sum(map(len, self._subtasks.values())) > MOST_SUBTASKS or len(self._subtasks) > MOST_NAMES:
            return {}
        return {
            name: tuple(Work(int(rows), round(busy, 6)) for rows, busy in figures.tolist())
            for name, figures in self._subtasks.items()
        }
