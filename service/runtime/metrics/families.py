"""Metric families that are computed on each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from epochal.contracts.measurements import BOUNDS_SECONDS, Durations

Samples = Iterable[tuple[Sequence[str], float]]
"""Label values and value of each sample."""

_BOUNDS = [*map(floatToGoString, BOUNDS_SECONDS), "+Inf"]


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, sample in samples:
        family.add_metric(values, sample)
    return family


def counter(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """``name``: without its ``_total``."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, sample in samples:
        family.add_metric(values, sample)
    return family


def histogram(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], Durations]]
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, durations in samples:
        buckets = list(zip(_BOUNDS, map(float, accumulate(durations.counts)), strict=True))
        family.add_metric(values, buckets, durations.seconds)
    return family
