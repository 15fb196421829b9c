"""An application over time: its rate, its lag and its number of subtasks.

All times are seconds since 1970, by one clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.figure import Moment, Panel, Points
from epochal.contracts.catalog import EpochRecord

STEP_SECONDS = 5.0
"""Seconds over which rates are averaged."""


@dataclass(frozen=True)
class Count:
    """Total number of rows at a time."""

    at: float
    rows: int


@dataclass(frozen=True)
class Timeline:
    """``arrivals``: available rows over time. ``epochs``: committed epochs, oldest first. ``subtasks``: the initial
    number."""

    arrivals: Sequence[Count]
    epochs: Sequence[EpochRecord]
    subtasks: int

    @property
    def began(self) -> float:
        return self.epochs[0].started_at.timestamp()

    @property
    def taken(self) -> Sequence[Count]:
        """Processed rows at each commit."""
        at = [record.committed_at.timestamp() for record in self.epochs if record.committed_at is not None]
        rows = np.cumsum([record.rows_in or 0 for record in self.epochs]).tolist()
        return [Count(*each) for each in zip(at, rows, strict=True)]

    @property
    def rescaled(self) -> Sequence[tuple[float, int]]:
        """Begin of each first epoch with another number of subtasks, and the number."""
        return [
            (record.started_at.timestamp(), int(change.detail["parallelism"][1]))
            for record in self.epochs
            for change in record.changes
            if change.kind == "rescale"
        ]

    def panels(self) -> list[Panel]:
        """Panels by seconds since the begin of the first epoch."""
        began, taken = self.began, self.taken
        lags = [(count.at, lag(self.arrivals, count.rows, count.at)) for count in taken]
        steps = [(began, self.subtasks), *self.rescaled, (taken[-1].at, 0)]
        subtasks = [(at, count) for (since, count), (until, _) in pairwise(steps) for at in (since, until)]
        arriving = rates(self.arrivals, began, taken[-1].at)
        processed = rates([Count(began, 0), *taken], began, taken[-1].at)
        return [
            Panel("rows/s", {"processed": _since(began, processed), "arriving": _since(began, arriving)}),
            Panel("lag, s", {"age of the oldest row that waits": _since(began, lags)}),
            Panel("subtasks", {"of the operator": _since(began, subtasks)}),
        ]

    def moments(self, others: Sequence[Moment]) -> list[Moment]:
        """``others`` (with absolute times) and rescales, by seconds since the begin of the first epoch."""
        counts = [self.subtasks, *(count for _, count in self.rescaled)]
        rescaled = [
            Moment(at, f"{after} subtasks instead of {before}, by the autoscaler")
            for (at, _), (before, after) in zip(self.rescaled, pairwise(counts), strict=True)
        ]
        found = sorted([*rescaled, *others], key=lambda moment: moment.x)
        return [Moment(moment.x - self.began, moment.what) for moment in found]


def lag(arrivals: Sequence[Count], taken: int, at: float) -> float:
    """Waiting time of the oldest row that is not among the first ``taken`` rows, or 0."""
    first = bisect_right(arrivals, taken, key=lambda count: count.rows)
    return max(0.0, at - arrivals[first].at) if first < len(arrivals) else 0.0


def rates(counts: Sequence[Count], since: float, until: float) -> Points:
    """Rows a second over steps of ``STEP_SECONDS``, each at its middle. Counts are interpolated linearly."""
    edges = np.arange(since, until, STEP_SECONDS)
    rows = np.interp(edges, [count.at for count in counts], [count.rows for count in counts])
    middles = (edges[:-1] + STEP_SECONDS / 2).tolist()
    return list(zip(middles, (np.diff(rows) / STEP_SECONDS).tolist(), strict=True))


def _since(began: float, points: Sequence[tuple[float, float]]) -> Points:
    return [(at - began, value) for at, value in points]
