"""Latency of look-ups, by application. Thousands are answered per second, so the cost of recording one must be
minimal."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

BOUNDS_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_BOUNDS_AND_ABOVE: Final = (*BOUNDS_SECONDS, inf)
NAME, TEXT = "epochal_lookup_seconds", "Duration of look-ups that were answered, by application"
_NAMES = [*map(floatToGoString, BOUNDS_SECONDS), "+Inf"]


class ManyHistogram(Histogram):
    """A histogram that records many observations in one call, with one write per bucket."""

    def observe_all(self, seconds: Sequence[float]) -> None:
        self._sum.inc(sum(seconds))
        for bucket, count in zip(self._buckets, _counts(self._upper_bounds, seconds), strict=True):
            if count:
                bucket.inc(count)


def _counts(bounds: Sequence[float], seconds: Sequence[float]) -> list[int]:
    """Number of values in each bucket: above the previous bound, up to and including its own. Values above the last
    bound are not counted."""
    ordered = sorted(seconds)
    upto = [bisect_right(ordered, bound) for bound in bounds]
    return [count - before for before, count in pairwise([0, *upto])]


class LookupLatencies:
    """Written by one thread at a time; read by any.

    ``shared``: the registry of a process that is one of several with common counts. prometheus_client stores them; the
    series of a deleted application remains until these processes are restarted.
    """

    def __init__(self, shared: CollectorRegistry | None = None) -> None:
        self._shared = None
        if shared is not None:
            self._shared = ManyHistogram(NAME, TEXT, ["application"], buckets=BOUNDS_SECONDS, registry=shared)
        self._counts: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def observe(self, application: str, seconds: Sequence[float]) -> None:
        if self._shared is not None:
            self._shared.labels(application).observe_all(seconds)
            return
        counts = self._counts.get(application)
        if counts is None:
            counts = self._counts[application] = [0] * (len(BOUNDS_SECONDS) + 1)
            self._seconds[application] = 0.0
        for bucket, count in enumerate(_counts(_BOUNDS_AND_ABOVE, seconds)):
            counts[bucket] += count
        self._seconds[application] += sum(seconds)

    def keep(self, applications: Collection[str]) -> None:
        """Remove the counts of all other applications, which were deleted."""
        for name in self._counts.keys() - set(applications):
            del self._counts[name], self._seconds[name]

    def collect(self) -> Iterable[Metric]:
        if self._shared is not None:
            return
        family = HistogramMetricFamily(NAME, TEXT, labels=["application"])
        for name, counts in list(self._counts.items()):
            buckets = list(zip(_NAMES, map(float, accumulate(counts)), strict=True))
            family.add_metric([name], buckets, self._seconds.get(name, 0.0))
        yield family
