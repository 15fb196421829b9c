"""Prometheus metrics: durations as requests end, counts from the catalog when they are asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from epochal.errors import EpochalError
from epochal.service.catalog.database import Database
from epochal.service.catalog.figures import CountRepository

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LEFT_OUT: Final = {
    "late": ("epochal_late_rows", "Late rows that operators left out in committed epochs", "operator (place)"),
    "rejected": (
        "epochal_rejected_rows",
        "Rows without a possible event time in committed epochs",
        "declaration of event time (place)",
    ),
    "dropped": ("epochal_dropped_timers", "Timers dropped at the end of their input", "operator (place)"),
}
"""By kind, as the catalog has them: the counter, without its ``_total``, and what is said of it."""
COUNTS_ARE_KEPT_SECONDS = 5.0
SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's, which looks at it when it is imported."""


class Metrics:
    """One registry per app, so that several apps can live in one process."""

    def __init__(self, database: Database | None) -> None:
        """``database``: whose rows are counted, too. Query nodes count none: that would add up."""
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "epochal_request_seconds",
            "Duration of HTTP requests, by path template",
            ["method", "path", "status"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        if database is not None:
            self._registry.register(_Counts(database))

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        self._requests.labels(method, path, str(status)).observe(seconds)

    def render(self) -> bytes:
        """In Prometheus' text format. Of the processes that share ``PROMETHEUS_MULTIPROC_DIR``, all together."""
        if SHARED_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)


class _Counts(Collector):
    """Applications and epochs by state, watermarks, what was left out.

    Counted at most every few seconds, however many ask.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counted_at = float("-inf")
        self._metrics: list[Metric] = []

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        if time.monotonic() - self._counted_at > COUNTS_ARE_KEPT_SECONDS:
            self._metrics = self._count()
            self._counted_at = time.monotonic()
        return self._metrics

    def _count(self) -> list[Metric]:
        up = GaugeMetricFamily("epochal_catalog_up", "1 when the catalog answers")
        try:
            with self._database.reading() as session:
                counts = CountRepository(session)
                applications = _family("epochal_applications", "Applications by state", counts.applications())
                epochs = _family("epochal_epochs", "Epochs by state", counts.epochs())
                watermarks = _watermarks(counts.watermarks())
                left_out = _left_out(counts.left_out())
        except EpochalError:
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        return [up, applications, epochs, watermarks, *left_out]


def _family(name: str, text: str, counts: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["state"])
    for state, count in counts.items():
        family.add_metric([state], count)
    return family


def _left_out(totals: Iterable[tuple[str, str, str, int]]) -> list[CounterMetricFamily]:
    families = {
        kind: CounterMetricFamily(name, f"{text}, by application and {place}", labels=["application", "place"])
        for kind, (name, text, place) in _LEFT_OUT.items()
    }
    for application, kind, place, total in totals:
        families[kind].add_metric([application, place], total)
    return list(families.values())


def _watermarks(known: Iterable[tuple[str, str, datetime]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "epochal_watermark_timestamp_seconds",
        "Watermark of an application's latest epoch, by declaration of event time or operator (place)",
        labels=["application", "place"],
    )
    for application, place, watermark in known:
        family.add_metric([application, place], watermark.timestamp())
    return family
