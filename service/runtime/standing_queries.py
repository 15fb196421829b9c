"""The standing queries of an application, from its latest committed snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from epochal.contracts.conditions import Watermarks
from epochal.errors import NotFound
from epochal.service.catalog.application_heads import heads
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.snapshots.store import SnapshotStore
from epochal.standing_queries.active import ActiveQueries, StandingQuery


@dataclass(frozen=True)
class InForce:
    """``epoch``: the committed epoch with these queries; ``None`` before the first. ``watermarks``: watermarks of that
    epoch, by operator."""

    queries: ActiveQueries = field(default_factory=ActiveQueries)
    epoch: int | None = None
    watermarks: Mapping[str, Watermarks] = field(default_factory=dict)


class StandingQueriesInForce:
    def __init__(self, database: Database, store: SnapshotStore) -> None:
        self._database = database
        self._store = store

    def of(self, application: str) -> InForce:
        """Raises ``NotFound``, and what reading a snapshot raises."""
        with self._database.reading() as session:
            ApplicationRepository(session).named(application)
            head = next(iter(heads(session, application))).committed
        if head is None:
            return InForce()
        manifest = self._store.read_manifest(head)
        if manifest.queries is None:
            return InForce(epoch=head.epoch)
        data = self._store.read_file(manifest.queries, f"snapshot {head.key}")
        return InForce(ActiveQueries.decode(data), head.epoch, manifest.clock.places)


def found_in(active: ActiveQueries, application: str, id: int) -> StandingQuery:
    """The query with this id. Raises ``NotFound``."""
    query = active.get(id)
    if query is None:
        raise NotFound(f"Application {application!r} has no standing query {id}; it may be dropped, or not begun yet.")
    return query
