"""Load of an application's operators over a short window. Pure except for its clock.

Rules for skew and stragglers:

- An operator is *skewed* when the subtask with the most rows has at least ``SKEWED`` times the mean, and there are at
  least ``ENOUGH_ROWS`` rows in total.
- A subtask is a *straggler* when it has worked at least ``STRAGGLING`` times as long as the median of the operator's
  other subtasks, and ``NOTICEABLE_SECONDS`` longer, with at most ``SAME_ROWS`` times the median of their rows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from epochal.contracts.measurements import (
    MOST_NAMES,
    MOST_SAMPLES,
    SAMPLE_SECONDS,
    Load,
    LoadSample,
    OperatorLoad,
    SubtaskLoad,
    Work,
)

WINDOW_SAMPLES = 6
"""Number of complete samples in the window, beside the current one."""

SKEWED = 1.5
ENOUGH_ROWS = 1000
STRAGGLING = 2.0
NOTICEABLE_SECONDS = 1.0
SAME_ROWS = 1.25
MOST_STRAGGLERS = 10
"""Maximum number of reported stragglers, those that worked longest."""

Figures = npt.NDArray[np.float64]
"""One row per subtask: number of rows and seconds of work."""


def figures_of(subtasks: Sequence[Work]) -> Figures:
    return np.array(subtasks, np.float64).reshape(-1, 2)


@dataclass
class _Sample:
    began: float
    operators: dict[str, Figures] = field(default_factory=dict)
    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)

    def busy_seconds(self, parallelism: int) -> float:
        """Seconds of work of the operators with this number of subtasks."""
        found = (figures for figures in self.operators.values() if len(figures) == parallelism)
        return float(sum(figures[:, 1].sum() for figures in found))


class RecentLoad:
    """Recent load with one version and parallelism; a change discards earlier measurements. ``clock``: in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._version: int | None = None
        self._parallelism = 1
        self._epoch: int | None = None
        self._latest: dict[str, Figures] = {}
        self._sample = _Sample(clock())
        self._window: deque[_Sample] = deque(maxlen=WINDOW_SAMPLES)
        self._samples: deque[LoadSample] = deque(maxlen=MOST_SAMPLES)
        self.lasting_stragglers: dict[str, list[int]] = {}
        """By operator, the stragglers of a full window that are slow in most of its samples."""

    def ran(
        self,
        epoch: int,
        version: int | None,
        parallelism: int,
        work: Mapping[str, Sequence[Work]],
        read: Mapping[str, int] = MappingProxyType({}),
        written: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Add an epoch: the work of each subtask, by operator; rows read, by source; rows written, by sink.

        The first epoch is not added, since it also built the views of the state.
        """
        figures = {name: figures_of(subtasks) for name, subtasks in work.items()}
        if self._epoch is None or (version, parallelism) != (self._version, self._parallelism):
            self._version, self._parallelism = version, parallelism
            self._window.clear()
            self._samples.clear()
            self.lasting_stragglers = {}
            self._sample = _Sample(self._clock())
            _add(self._sample.operators, {name: np.zeros_like(each) for name, each in figures.items()})
        else:
            _add(self._sample.operators, figures)
            self._sample.read.update(read)
            self._sample.written.update(written)
        self._epoch, self._latest = epoch, figures

    def between_epochs(self, lag_seconds: Callable[[], float | None]) -> None:
        """End the current sample if it is long enough. Called between epochs."""
        seconds = self._clock() - self._sample.began
        if self._epoch is None or seconds < SAMPLE_SECONDS:
            return
        # A rescaling of the application does not change the work of operators with numbers of their own.
        busy, share = self._sample.busy_seconds(self._parallelism), _busy(self._sample.operators) / seconds
        self._samples.append(LoadSample(round(seconds, 3), round(busy, 6), lag_seconds(), round(share, 6)))
        self._window.append(self._sample)
        self._sample = _Sample(self._clock())
        self.lasting_stragglers = self._lasting_stragglers()

    def _lasting_stragglers(self) -> dict[str, list[int]]:
        if len(self._window) < WINDOW_SAMPLES:
            return {}
        found = {}
        for name, figures in _sums(self._window).items():
            of_window = _stragglers_of(figures)
            if of_window:
                of_samples = Counter(
                    subtask
                    for sample in self._window
                    if name in sample.operators
                    for subtask in _stragglers_of(sample.operators[name], NOTICEABLE_SECONDS / WINDOW_SAMPLES)
                )
                found[name] = [subtask for subtask in of_window if 2 * of_samples[subtask] > WINDOW_SAMPLES]
        return {name: subtasks for name, subtasks in found.items() if subtasks}

    def report(self) -> Load | None:
        if self._epoch is None:
            return None
        samples = [*self._window, self._sample]
        window = _sums(samples)
        seconds = max(0.0, self._clock() - (self._window[0] if self._window else self._sample).began)
        busy = _busy(window)
        return Load(
            version=self._version,
            parallelism=self._parallelism,
            epoch=self._epoch,
            seconds=round(seconds, 3),
            busy_share=round(busy / seconds, 4) if seconds else 0.0,
            operators={
                name: operator_load(figures, self._latest.get(name))
                for name, figures in list(window.items())[:MOST_NAMES]
            },
            rows_read=_rows(sample.read for sample in samples),
            rows_written=_rows(sample.written for sample in samples),
            samples=tuple(self._samples),
        )


def operator_load(window: Figures, latest: Figures | None) -> OperatorLoad:
    """Load of an operator from the figures of its subtasks in the window and in the latest epoch."""
    rows, busy = window[:, 0], window[:, 1]
    total, largest = int(rows.sum()), int(rows.argmax()) if len(rows) else 0
    skew = None if not total else float(rows[largest] / rows.mean())
    epoch_rows, epoch_busy = (0.0, 0.0) if latest is None else latest.sum(axis=0)
    return OperatorLoad(
        subtasks=len(window),
        rows=total,
        busy_seconds=round(float(busy.sum()), 6),
        epoch_rows=int(epoch_rows),
        epoch_busy_seconds=round(float(epoch_busy), 6),
        skew=None if skew is None else round(skew, 3),
        skewed=skew is not None and skew >= SKEWED and total >= ENOUGH_ROWS,
        largest=_subtask(window, largest) if total else None,
        stragglers=tuple(_subtask(window, subtask) for subtask in _stragglers_of(window)),
    )


def stragglers(
    rows: Sequence[float], busy_seconds: Sequence[float], noticeable_seconds: float = NOTICEABLE_SECONDS
) -> list[int]:
    """Stragglers, at most ``MOST_STRAGGLERS``, ordered by decreasing working time."""
    found: list[int] = []
    for subtask in sorted(range(len(rows)), key=lambda one: -busy_seconds[one]):
        others = [other for other in range(len(rows)) if other != subtask]
        if not others or len(found) == MOST_STRAGGLERS:
            break
        usual = median(busy_seconds[other] for other in others)
        mine = busy_seconds[subtask]
        if mine < STRAGGLING * usual or mine - usual < noticeable_seconds:
            break  # the following subtasks have worked less
        if rows[subtask] <= SAME_ROWS * median(rows[other] for other in others):
            found.append(subtask)
    return found


def _stragglers_of(figures: Figures, noticeable_seconds: float = NOTICEABLE_SECONDS) -> list[int]:
    return stragglers(figures[:, 0].tolist(), figures[:, 1].tolist(), noticeable_seconds)


def _busy(operators: Mapping[str, Figures]) -> float:
    """Seconds of work per subtask."""
    return float(sum(figures[:, 1].mean() for figures in operators.values()))


def _subtask(window: Figures, subtask: int) -> SubtaskLoad:
    rows, busy = window[subtask].tolist()
    return SubtaskLoad(subtask=subtask, rows=int(rows), busy_seconds=round(busy, 6))


def _sums(samples: Iterable[_Sample]) -> dict[str, Figures]:
    """Figures of the samples together, by operator."""
    sums: dict[str, Figures] = {}
    for sample in samples:
        _add(sums, sample.operators)
    return sums


def _rows(samples: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for sample in samples:
        found.update(sample)
    return dict(list(found.items())[:MOST_NAMES])


def _add(sums: dict[str, Figures], more: Mapping[str, Figures]) -> None:
    for name, figures in more.items():
        before = sums.get(name)
        sums[name] = figures.copy() if before is None else before + figures
