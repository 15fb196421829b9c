"""Prometheus metrics: of this process, and of the catalog, read on each scrape.

Metrics of the catalog are equal at every control plane: see ``docs/operations/observability.md``.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from functools import cached_property

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from epochal.service.catalog.database import Database
from epochal.service.runtime.metrics.catalog import CatalogCollector
from epochal.service.runtime.metrics.lookups import LookupLatencies, ManyHistogram
from epochal.service.runtime.metrics.node import Node, NodeCollector

__all__ = ["Metrics", "Node"]

SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Variable of prometheus_client, which reads it when it is imported."""
POINT_ROUTE = "/v1/applications/{name}/state/{table}/keys/{key:path}"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """One registry per app, so that several apps can exist in one process.

    ``database``: the catalog of a control plane, whose metrics are included; ``node``: the components of this process.
    """

    def __init__(self, database: Database | None = None, node: Node = Node()) -> None:
        self._registry = CollectorRegistry()
        self._requests = ManyHistogram(
            "epochal_request_seconds",
            "Duration of HTTP requests, by path template",
            ["method", "path", "status"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._children: dict[tuple[str, str, int], Histogram] = {}
        self._looked_up: deque[tuple[str, float]] = deque()
        self._lock = threading.Lock()
        catalog = None if database is None else CatalogCollector(database)
        self._lookups = LookupLatencies(self._registry if _shared() else None)
        self._node = NodeCollector(node, catalog, self._lookups)
        self._registry.register(self._node)
        if catalog is not None:
            self._registry.register(catalog)

    def observe(self, method: str, path: str, status: int, seconds: float, application: str | None = None) -> None:
        """Record an answered request. ``application``: the request was a successful look-up in this application's
        state."""
        child = self._children.get((method, path, status))
        if child is None:
            child = self._children[method, path, status] = self._requests.labels(method, path, str(status))
        child.observe(seconds)
        if application is not None:
            with self._lock:
                self._lookups.observe(application, [seconds])

    def looked_up(self, application: str, seconds: float) -> None:
        """Record a point look-up like :meth:`observe`, at minimal cost; :meth:`take_in` counts it."""
        self._looked_up.append((application, seconds))

    @cached_property
    def _points(self) -> ManyHistogram:
        return self._requests.labels("GET", POINT_ROUTE, "200")

    def take_in(self) -> None:
        """Count the recorded point look-ups."""
        with self._lock:
            by_application: dict[str, list[float]] = {}
            while self._looked_up:
                application, seconds = self._looked_up.popleft()
                by_application.setdefault(application, []).append(seconds)
            for application, times in by_application.items():
                self._points.observe_all(times)
                self._lookups.observe(application, times)

    def render(self) -> bytes:
        """The metrics in Prometheus' text format. With ``PROMETHEUS_MULTIPROC_DIR``, of all processes that share it,
        except look-ups that other processes have not counted yet."""
        self.take_in()
        if not _shared():
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        together.register(self._node)
        return generate_latest(together)


def _shared() -> bool:
    return SHARED_VARIABLE in os.environ
