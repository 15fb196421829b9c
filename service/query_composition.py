"""Putting the processes of a query node together from their orders."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from epochal.service.api.context import QueryNode
from epochal.service.catalog.database import Database
from epochal.service.domain.settings import Settings
from epochal.service.queries.applications import ApplicationQueries
from epochal.service.queries.epochs import EpochService
from epochal.service.queries.executions import ExecutionService
from epochal.service.queries.lineage.service import LineageService
from epochal.service.queries.nodes import NodeService
from epochal.service.queries.snapshots import SnapshotDirectory, SnapshotService
from epochal.service.runtime.authenticator import Authenticator
from epochal.service.runtime.events.hints import Hints, hints_of
from epochal.service.runtime.metrics import Metrics, Node
from epochal.service.runtime.replicas.lag import ReplicaLags
from epochal.service.runtime.replicas.replicas import Replicas
from epochal.service.runtime.replicas.shared import SharedReplicas
from epochal.snapshots.store import SnapshotStore

WORKER_CONNECTIONS = 8
"""To the catalog, of each worker: for tokens, and for look-ups that do not come from replicas."""
APPLIER_CONNECTIONS = 2


class QueryOrders(BaseModel):
    """What a process of a query node is to do. ``folder``: where the node's replicas are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: Settings
    folder: Path


def compose_worker(orders: QueryOrders) -> tuple[QueryNode, SharedReplicas]:
    """What answers, and the replicas that it reads. Nothing is opened, no connection made."""
    settings = orders.settings
    database = Database(settings.database_url, WORKER_CONNECTIONS)
    store = SnapshotStore(settings.store_url)
    directory = SnapshotDirectory(database)
    replicas = SharedReplicas(orders.folder, store)
    node = QueryNode(
        settings=settings,
        database=database,
        store=store,
        authenticator=Authenticator(database, settings.authentication),
        metrics=Metrics(node=Node(replicas=ReplicaLags(database, replicas))),
        snapshots=directory,
        replicas=replicas,
        registered=ApplicationQueries(database),
        executions=ExecutionService(database),
        nodes=NodeService(database),
        epochs=EpochService(database),
        manifests=SnapshotService(database, directory, store),
        lineage=LineageService(database, store),
    )
    return node, replicas


class Applier(NamedTuple):
    """The catalog, the replicas that follow it, and what makes that sooner than within a second."""

    database: Database
    replicas: Replicas
    hints: Hints


def compose_applier(orders: QueryOrders) -> Applier:
    """Nothing is opened, no connection made."""
    settings = orders.settings
    database = Database(settings.database_url, APPLIER_CONNECTIONS)
    store = SnapshotStore(settings.store_url)
    directory = SnapshotDirectory(database)
    replicas = Replicas(settings.replicas_directory, store, directory, None, claimed=orders.folder)
    return Applier(database, replicas, hints_of(settings.database_url, settings.data.absolute()))
