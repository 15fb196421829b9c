"""Orders of the processes of a query node, and composition of its applier, which serves no requests and loads no web
framework. ``query_app.py`` composes workers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from epochal.service.catalog.database import Database
from epochal.service.catalog.lineage_bounds import CatalogLineages
from epochal.service.domain.settings import Settings
from epochal.service.queries.snapshots import SnapshotDirectory
from epochal.service.runtime.events.hints import Hints, hints_of
from epochal.service.runtime.replicas.replicas import Replicas
from epochal.snapshots.lineage_bounds import LineageStore

APPLIER_CONNECTIONS = 2


class QueryOrders(BaseModel):
    """Orders of a process of a query node. ``folder``: the node's replicas."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: Settings
    folder: Path


class Applier(NamedTuple):
    """The catalog, the replicas that follow it, and hints that make them follow within less than a second."""

    database: Database
    replicas: Replicas
    hints: Hints


def compose_applier(orders: QueryOrders) -> Applier:
    """Compose without opening anything or connecting."""
    settings = orders.settings
    database = Database(settings.database_url, APPLIER_CONNECTIONS)
    store = LineageStore(settings.store_url, CatalogLineages(database))
    directory = SnapshotDirectory(database)
    replicas = Replicas(settings.replicas_directory, store, directory, None, orders.folder, settings.replica_bytes)
    return Applier(database, replicas, hints_of(settings.database_url, settings.data.absolute()))
