"""Metrics of this process: leadership, pools, replicas. Each control plane reports its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import epochal
from epochal.service.catalog.database import Database
from epochal.service.domain.ports import SpareFigures
from epochal.service.domain.snapshots import ReplicaLag
from epochal.service.runtime.metrics.catalog import CatalogCollector
from epochal.service.runtime.metrics.families import counter, gauge
from epochal.service.runtime.metrics.lookups import LookupLatencies

if TYPE_CHECKING:
    from epochal.service.domain.building import Builds


@dataclass(frozen=True)
class Node:
    """Access to the components of this process. ``None``: the process has no such component.

    ``term``: term of the lease while this process leads. ``pools``: connection pools of the catalog, by purpose.
    """

    term: Callable[[], int | None] | None = None
    builds: Callable[[], Builds] | None = None
    replicas: Callable[[], Mapping[str, ReplicaLag]] | None = None
    spares: Callable[[], SpareFigures] | None = None
    warm_builders: Callable[[], SpareFigures] | None = None
    pools: Mapping[str, Database] | None = None


class NodeCollector(Collector):
    def __init__(self, node: Node, catalog: CatalogCollector | None, lookups: LookupLatencies) -> None:
        self._node = node
        self._catalog = catalog
        self._lookups = lookups

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        yield gauge("epochal_build_info", "1, with the version", ["version"], [([epochal.__version__], 1)])
        yield from self._leader()
        yield from self._builds()
        yield from self._spares()
        yield from self._pools()
        yield from self._replicas()
        known = None if self._catalog is None else self._catalog.applications()
        if known is not None:
            self._lookups.keep(known)
        yield from self._lookups.collect()

    def _leader(self) -> Iterable[Metric]:
        if self._node.term is None:
            return
        term = self._node.term()
        yield gauge("epochal_leader", "1 if this control plane leads, 0 otherwise", [], [([], term is not None)])
        leads: list[tuple[list[str], float]] = [] if term is None else [([], float(term))]
        yield gauge("epochal_leader_term", "Term of the lease, at the control plane that leads", [], leads)

    def _builds(self) -> Iterable[Metric]:
        if self._node.builds is None:
            return
        builds = self._node.builds()
        now = [(["running"], builds.running), (["waiting"], builds.waiting)]
        limits = [(["running"], builds.running_limit), (["waiting"], builds.waiting_limit)]
        yield gauge("epochal_builds", "Current number of builds of pipelines", ["state"], now)
        yield gauge("epochal_builds_limit", "Maximum number of builds of pipelines", ["state"], limits)

    def _spares(self) -> Iterable[Metric]:
        if self._node.spares is None:
            return
        spares = self._node.spares()
        now: list[tuple[list[str], float]] = [(["ready"], spares.ready), (["warming"], spares.warming)]
        yield gauge("epochal_warm_drivers", "Spare drivers now", ["state"], now)
        yield gauge("epochal_warm_drivers_limit", "Target number of ready spare drivers", [], [([], spares.limit)])
        yield gauge("epochal_warm_drivers_bytes", "Memory of spare drivers", [], [([], spares.bytes)])
        if self._node.warm_builders is not None:
            builders = self._node.warm_builders()
            now = [(["ready"], builders.ready), (["warming"], builders.warming)]
            yield gauge("epochal_warm_builders", "Number of builders with a started Spark", ["state"], now)
            yield gauge("epochal_warm_builders_bytes", "Memory of these builders", [], [([], builders.bytes)])
        started: list[tuple[list[str], float]] = [(["warm"], spares.taken), (["cold"], spares.cold)]
        yield counter(
            "epochal_drivers_started",
            "Drivers started from a spare, and drivers started without one",
            ["start"],
            started,
        )
        seconds = spares.warmed_seconds
        known: list[tuple[list[str], float]] = [] if seconds is None else [([], seconds)]
        yield gauge("epochal_warm_driver_seconds", "Duration of the preparation of the latest spare driver", [], known)

    def _pools(self) -> Iterable[Metric]:
        pools = self._node.pools or {}
        now = [([name], database.connections_in_use) for name, database in pools.items()]
        limits = [([name], database.connections_limit) for name, database in pools.items()]
        yield gauge("epochal_catalog_connections", "Number of connections to the catalog in use", ["pool"], now)
        yield gauge(
            "epochal_catalog_connections_limit", "Maximum number of connections to the catalog", ["pool"], limits
        )

    def _replicas(self) -> Iterable[Metric]:
        if self._node.replicas is None:
            return
        lags = self._node.replicas()
        epochs = [([name], lag.epochs) for name, lag in lags.items()]
        seconds = [([name], lag.seconds) for name, lag in lags.items()]
        yield gauge(
            "epochal_replica_lag_epochs",
            "Number of committed epochs that look-ups do not return yet",
            ["application"],
            epochs,
        )
        yield gauge(
            "epochal_replica_lag_seconds",
            "Time since which look-ups have lagged behind committed epochs; 0 if they do not lag",
            ["application"],
            seconds,
        )
