"""Metrics from the catalog, read at most every few seconds regardless of the number of scrapes; equal at every control
plane."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, get_args

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from epochal.errors import EpochalError
from epochal.service.catalog.checks import is_replicated_synchronously
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.driver_reports import measured
from epochal.service.catalog.metrics import (
    ApplicationMetrics,
    CountRepository,
    EndedOperations,
    Running,
    by_cause,
    running_operations,
)
from epochal.service.catalog.types import now
from epochal.service.catalog.webhooks import WebhookRepository
from epochal.service.domain.failures import CAUSES
from epochal.service.runtime.metrics.families import counter, gauge
from epochal.service.runtime.metrics.reports import of_reports
from epochal.wire.operations import OperationKind, OperationState

KEPT_SECONDS = 5.0
_APPLICATION: Final = ["application"]
_SUMS: Final = {
    "committed_epochs": ("epochal_committed_epochs", "Epochs that were committed"),
    "rows_in": ("epochal_rows_in", "Rows that committed epochs read"),
    "rows_out": ("epochal_rows_out", "Rows that committed epochs wrote to sinks"),
    "state_rows": ("epochal_state_changed_rows", "Rows of state that committed epochs changed"),
    "state_bytes": ("epochal_state_changed_bytes", "Bytes of the deltas of committed epochs"),
    "attempts": ("epochal_attempts", "Drivers that were started"),
    "restarts": ("epochal_restarts", "Drivers that were started in place of one that had failed or was lost"),
}
_SKIPPED: Final = {
    "late": ("epochal_late_rows", "Late rows that operators left out in committed epochs", "operator (place)"),
    "rejected": (
        "epochal_rejected_rows",
        "Rows without a possible event time, and rows that a sink rejected, in committed epochs",
        "declaration of event time, or sink (place)",
    ),
    "dropped": ("epochal_dropped_timers", "Timers dropped at the end of their input", "operator (place)"),
}
"""By kind as stored in the catalog: the counter's name without ``_total``, its description, and its place label."""


class CatalogCollector(Collector):
    """Collects metrics from the catalog. Each query reads one row per application, an index, or the changes since the
    last read."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._metrics: list[Metric] = []
        self._operations = EndedOperations()
        self._applications: Collection[str] | None = None

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            if time.monotonic() - self._read_at > KEPT_SECONDS:
                self._metrics = self._read()
                self._read_at = time.monotonic()
            return self._metrics

    def applications(self) -> Collection[str] | None:
        """The applications at the last read; ``None`` before the first."""
        return self._applications

    def _read(self) -> list[Metric]:
        try:
            with self._database.reading() as session:
                metrics = list(self._all(session))
        except EpochalError:
            return [gauge("epochal_catalog_up", "1 when the catalog answers", [], [([], 0)])]
        return [gauge("epochal_catalog_up", "1 when the catalog answers", [], [([], 1)]), *metrics]

    def _all(self, session: Session) -> Iterator[Metric]:
        moment = now()
        counts, figures = CountRepository(session), ApplicationMetrics(session)
        states = figures.states()
        self._applications = set(states)
        yield _by_state("epochal_applications", "Applications by state", counts.applications())
        yield _by_state("epochal_epochs", "Epochs by state", counts.epochs())
        yield gauge(
            "epochal_application_state",
            "1 for the current state of an application, 0 for the others",
            ["application", "state"],
            (([name, state], 1) for name, state in states.items()),
        )
        yield from _sums(figures)
        yield from _running(figures.running(), figures.interrupted())
        yield _watermarks(counts.watermarks())
        yield from _skipped(counts.skipped())
        yield from of_reports(list(measured(session, moment)), moment)
        self._operations.read(session, moment)
        yield from _operations(self._operations, running_operations(session))
        yield from _webhooks(WebhookRepository(session))
        replicated = is_replicated_synchronously(session)
        yield gauge(
            "epochal_catalog_synchronous_replication",
            "1 if each commit of the catalog waits for a standby, 0 otherwise; missing on SQLite",
            [],
            [] if replicated is None else [([], replicated)],
        )


def _by_state(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    return gauge(name, text, ["state"], (([state], count) for state, count in counts.items()))


def _sums(figures: ApplicationMetrics) -> Iterator[Metric]:
    sums = dict(figures.sums())
    for column, (name, text) in _SUMS.items():
        yield counter(name, text, _APPLICATION, (([one], found[column]) for one, found in sums.items()))
    aborted = figures.aborted()
    causes = {name: by_cause(aborted.get(name, {}), found["aborted_epochs"]) for name, found in sums.items()}
    yield counter(
        "epochal_aborted_epochs",
        "Number of aborted epochs, by cause",
        ["application", "cause"],
        (([name, cause], found.get(cause, 0)) for name, found in causes.items() for cause in CAUSES),
    )


def _running(running: Sequence[Running], interrupted: Mapping[str, int]) -> Iterator[Metric]:
    uncommitted = {item.application: item.uncommitted for item in running} | dict(interrupted)
    yield gauge(
        "epochal_uncommitted_epochs",
        "Number of decided epochs that are not committed in every sink",
        _APPLICATION,
        (([name], count) for name, count in uncommitted.items()),
    )
    yield gauge(
        "epochal_epoch_interval_seconds",
        "Setting of this name, for applications that should run",
        _APPLICATION,
        (([item.application], item.epoch_interval_seconds) for item in running),
    )
    yield gauge(
        "epochal_running_since_timestamp_seconds",
        "Start time of the execution, for applications that should run",
        _APPLICATION,
        (([item.application], item.since.timestamp()) for item in running),
    )
    for name, text, field in (
        ("epochal_heartbeat_timestamp_seconds", "When the driver was last heard", "heartbeat_at"),
        ("epochal_last_commit_timestamp_seconds", "When the latest epoch was committed", "committed_at"),
    ):
        found: list[tuple[str, datetime | None]] = [(item.application, getattr(item, field)) for item in running]
        yield gauge(
            name,
            f"{text}, for applications that should run",
            _APPLICATION,
            (([application], at.timestamp()) for application, at in found if at is not None),
        )


def _watermarks(known: Iterable[tuple[str, str, datetime]]) -> Metric:
    return gauge(
        "epochal_watermark_timestamp_seconds",
        "Watermark of an application's latest epoch, by declaration of event time or operator (place)",
        ["application", "place"],
        (([application, place], watermark.timestamp()) for application, place, watermark in known),
    )


def _skipped(totals: Iterable[tuple[str, str, str, int]]) -> Iterator[Metric]:
    found: dict[str, list[tuple[list[str], float]]] = {kind: [] for kind in _SKIPPED}
    for application, kind, place, total in totals:
        found[kind].append(([application, place], total))
    for kind, (name, text, place) in _SKIPPED.items():
        yield counter(name, f"{text}, by application and {place}", ["application", "place"], found[kind])


def _operations(operations: EndedOperations, running: Mapping[str, int]) -> Iterator[Metric]:
    kinds = get_args(OperationKind)
    ended = [state for state in get_args(OperationState) if state != "running"]
    now_running = (([kind], running.get(kind, 0)) for kind in kinds)
    yield gauge("epochal_operations_running", "Operations under way", ["kind"], now_running)
    yield counter(
        "epochal_operations_ended",
        "Operations that have ended since the first request of metrics to this process",
        ["kind", "state"],
        (([kind, state], operations.ended[kind, state]) for kind in kinds for state in ended),
    )
    collected = operations.collected
    yield counter(
        "epochal_collected_files",
        "Files that collections have deleted since the first request of metrics to this process",
        [],
        [([], collected.files)],
    )
    yield counter("epochal_collected_bytes", "Bytes of these files", [], [([], collected.bytes)])
    yield gauge(
        "epochal_last_collection_timestamp_seconds",
        "Time of the latest successful collection since the first request of metrics to this process",
        [],
        [] if collected.at is None else [([], collected.at.timestamp())],
    )


def _webhooks(webhooks: WebhookRepository) -> Iterator[Metric]:
    found = webhooks.figures()
    yield gauge(
        "epochal_webhooks", "Webhooks by state", ["state"], (([state], count) for state, count in found.states.items())
    )
    yield gauge("epochal_webhook_deliveries_waiting", "Deliveries that wait", [], [([], found.waiting)])
    yield counter(
        "epochal_webhook_deliveries_dropped", "Deliveries abandoned after all retries", [], [([], found.dropped)]
    )
