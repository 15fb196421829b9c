"""What an attempt measures of itself while it runs, for whoever asks. Costs an epoch a few microseconds."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from epochal.contracts.measurements import (
    BOUNDS_SECONDS,
    MOST_NAMES,
    DriverReport,
    Durations,
    MeasuredStep,
    Moment,
    SourceReport,
    TaskStep,
    Totals,
)
from epochal.contracts.source import Source

_MOST_MARKS = 512


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
    """One source. A mark says when how much was there in all, in the source's own unit, counted from this attempt on.

    What was there at a mark has been read as soon as that much was accepted.
    """

    behind: int | None = None
    accepted: int = 0
    marks: list[tuple[datetime, int]] = field(default_factory=list)
    apart: timedelta = timedelta(0)
    report: SourceReport = field(default_factory=SourceReport)

    def looked(self, source: Source, now: datetime) -> None:
        backlog = source.backlog()
        self.behind = backlog.amount
        read_until = self.report.read_until
        if backlog.reachable and self.behind is not None:
            there = self.accepted + self.behind
            if self.behind == 0:
                self.marks.clear()
                read_until = now
            elif self.marks and (self.marks[-1][1] == there or self._is_close(now)):
                self.marks[-1] = (now, there)
            else:
                self.marks.append((now, there))
        self.report = SourceReport(
            records=backlog.records, files=backlog.files, read_until=read_until, reachable=backlog.reachable
        )

    def _is_close(self, now: datetime) -> bool:
        """Marks are kept apart as they become many: fewer can only make a source look further behind."""
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
            update={"records": backlog.records, "files": backlog.files, "read_until": read_until}
        )


class Meter:
    """Written by the epoch loop, the commits' thread and the compaction's; read by any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._epochs = _Histogram()
        self._steps: dict[MeasuredStep, _Histogram] = {}
        self._tasks: dict[TaskStep, _Histogram] = {}
        self._sinks: dict[str, _Histogram] = {}
        self._compactions = _Histogram()
        self._failed_compactions = 0
        self._readings: dict[str, _Reading] = {}
        self._blocked: Mapping[str, datetime] = {}
        self._idle_at: datetime | None = None
        self._size: Callable[[], tuple[int, int]] | None = None
        self._reports = 0

    @contextmanager
    def step(self, step: MeasuredStep, before: float = 0.0) -> Iterator[None]:
        """The block is the step, or, with the seconds ``before``, the rest of it. Nothing is counted when it raises."""
        began = self.clock()
        yield
        self.took(step, before + self.clock() - began)

    def took(self, step: MeasuredStep, seconds: float) -> None:
        with self._lock:
            self._steps.setdefault(step, _Histogram()).observe(seconds)

    def tasks_took(self, tasks: Iterable[Mapping[TaskStep, float]]) -> None:
        """The seconds of each step, of the tasks of an epoch."""
        with self._lock:
            for task in tasks:
                for step, seconds in task.items():
                    self._tasks.setdefault(step, _Histogram()).observe(seconds)

    def committed(self, sink: str, seconds: float) -> None:
        """E5 in one sink: so long after the decision."""
        with self._lock:
            self._sinks.setdefault(sink, _Histogram()).observe(seconds)

    def published(self, seconds: float) -> None:
        """E6: an epoch that this attempt opened so long ago is committed."""
        with self._lock:
            self._epochs.observe(seconds)

    def compacted(self, seconds: float | None) -> None:
        """A compaction has ended; ``None``: it failed."""
        with self._lock:
            if seconds is None:
                self._failed_compactions += 1
            else:
                self._compactions.observe(seconds)

    def looked(self, sources: Mapping[str, Source]) -> None:
        """Each source has just looked for input."""
        now = datetime.now(UTC)
        with self._lock:
            for name, source in sources.items():
                self._readings.setdefault(name, _Reading()).looked(source, now)
            for name in self._readings.keys() - sources.keys():
                del self._readings[name]

    def accepted(self, name: str, source: Source) -> None:
        """A slice of the source is decided."""
        with self._lock:
            if name in self._readings:
                self._readings[name].took(source)

    def blocked(self, sinks: Mapping[str, datetime]) -> None:
        """Just these sinks do not take what is decided, since when."""
        self._blocked = dict(sinks)

    def idle(self) -> None:
        """There is nothing to do: no input, and all that had come is committed."""
        with self._lock:
            if all(reading.report.reachable for reading in self._readings.values()):
                self._idle_at = datetime.now(UTC)

    def sized(self, size: Callable[[], tuple[int, int]]) -> None:
        """How to find rows and bytes of the state's files; called when a report is made."""
        self._size = size

    def report(self) -> DriverReport:
        rows, size = (None, None) if self._size is None else self._size()
        with self._lock:
            self._reports += 1
            totals = Totals(
                epochs=self._epochs.report(),
                steps={step: histogram.report() for step, histogram in self._steps.items()},
                tasks={step: histogram.report() for step, histogram in self._tasks.items()},
                sinks={name: histogram.report() for name, histogram in list(self._sinks.items())[:MOST_NAMES]},
                compactions=self._compactions.report(),
                failed_compactions=self._failed_compactions,
            )
            moment = Moment(
                sources={name: reading.report for name, reading in list(self._readings.items())[:MOST_NAMES]},
                blocked_sinks=dict(list(self._blocked.items())[:MOST_NAMES]),
                idle_at=self._idle_at,
                state_rows=rows,
                state_bytes=size,
            )
            return DriverReport(number=self._reports, totals=totals, moment=moment)
