"""The standing queries of an application, as its latest committed snapshot says."""

from __future__ import annotations

from epochal.errors import NotFound
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.heads import heads
from epochal.snapshots.store import SnapshotStore
from epochal.standing.active import ActiveQueries, StandingQuery


class StandingQueriesInForce:
    def __init__(self, database: Database, store: SnapshotStore) -> None:
        self._database = database
        self._store = store

    def of(self, application: str) -> tuple[ActiveQueries, int | None]:
        """With the epoch, ``None`` before the first. Raises ``NotFound``; what reading a snapshot raises."""
        with self._database.reading() as session:
            ApplicationRepository(session).named(application)
            head = next(iter(heads(session, application))).committed
        if head is None:
            return ActiveQueries(), None
        file = self._store.read_manifest(head).queries
        if file is None:
            return ActiveQueries(), head.epoch
        return ActiveQueries.decode(self._store.read_file(file, f"snapshot {head.key}")), head.epoch


def found_in(active: ActiveQueries, application: str, id: int) -> StandingQuery:
    """Raises ``NotFound``."""
    query = active.get(id)
    if query is None:
        raise NotFound(f"Application {application!r} has no standing query {id}; it may be dropped, or not begun yet.")
    return query
