"""What the endpoints of garbage collection answer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from epochal.service.catalog.database import Database
from epochal.service.operations.schemas import OperationAnswer
from epochal.service.operations.service import operation_answer
from epochal.service.retention.collecting import Collection, CollectionRequest
from epochal.service.retention.operations import StoreOperations
from epochal.service.retention.part import Report, StoreWorker, Work
from epochal.service.retention.schemas import Collect, CollectionPlanAnswer, collection_answer, plan_answer
from epochal.service.settings import Settings
from epochal.snapshots.store import SnapshotStore


class CollectionService:
    def __init__(self, settings: Settings, database: Database, store: SnapshotStore) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self.worker = StoreWorker(StoreOperations(database), self._work(Collect()), settings.collect_every_seconds)

    def plan(self, request: Collect) -> CollectionPlanAnswer:
        """What a collection would do now. Changes nothing."""
        return plan_answer(Collection(self._database, self._store).plan(self._request(request)))

    def collect(self, request: Collect, by: str) -> OperationAnswer:
        """Raises ``Conflict`` while the store is being worked on."""
        operation = self.worker.begin("collect", request.model_dump(mode="json"), self._work(request), by)
        return operation_answer(operation, None)

    def _work(self, request: Collect) -> Work:
        def work(report: Report) -> dict[str, Any]:
            plan, deleted = Collection(self._database, self._store).run(self._request(request), report)
            return collection_answer(plan, deleted).model_dump(mode="json")

        return work

    def _request(self, request: Collect) -> CollectionRequest:
        given = request.grace_seconds
        seconds = self._settings.grace_seconds if given is None else given
        return CollectionRequest(timedelta(seconds=seconds), frozenset(request.foreign))
