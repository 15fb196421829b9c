"""Orders of the processes of a query node, and its applier put together from them: it answers nobody, and loads no web
framework. Workers are put together in ``query_app.py``."""

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
    """What a process of a query node is to do. ``folder``: where the node's replicas are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: Settings
    folder: Path


class Applier(NamedTuple):
    """The catalog, the replicas that follow it, and what makes that sooner than within a second."""

    database: Database
    replicas: Replicas
    hints: Hints


def compose_applier(orders: QueryOrders) -> Applier:
    """Nothing is opened, no connection made."""
    settings = orders.settings
    database = Database(settings.database_url, APPLIER_CONNECTIONS)
    store = LineageStore(settings.store_url, CatalogLineages(database))
    directory = SnapshotDirectory(database)
    replicas = Replicas(settings.replicas_directory, store, directory, None, claimed=orders.folder)
    return Applier(database, replicas, hints_of(settings.database_url, settings.data.absolute()))
