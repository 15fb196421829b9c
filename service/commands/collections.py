"""What the endpoints of garbage collection and verification answer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import select

from epochal.contracts.catalog import ManifestReference
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.collection_operations import StoreOperations
from epochal.service.catalog.collections import RetentionRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Branch
from epochal.service.catalog.operations import operation_answer
from epochal.service.catalog.retention import horizon_of
from epochal.service.catalog.types import now
from epochal.service.commands.collecting import Collection, CollectionRequest
from epochal.service.domain.settings import Settings
from epochal.service.domain.store_answers import collection_answer, plan_answer, verification_answer
from epochal.service.runtime.collection_worker import Report, StoreWorker
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.verification import Verification
from epochal.wire.collections import Collect, CollectionPlanAnswer, Verify
from epochal.wire.operations import OperationAnswer


class CollectionService:
    def __init__(self, settings: Settings, database: Database, store: SnapshotStore) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self.worker = StoreWorker(
            StoreOperations(database),
            {"collect": self._collect, "verify": self._verify},
            settings.collect_every_seconds,
        )

    def plan(self, request: Collect) -> CollectionPlanAnswer:
        """What a collection would do now. Changes nothing."""
        return plan_answer(Collection(self._database, self._store).plan(self._request(request)))

    def collect(self, request: Collect, by: str) -> OperationAnswer:
        """Raises ``Conflict`` while the store is being worked on."""
        return operation_answer(self.worker.begin("collect", request.model_dump(mode="json"), by), None)

    def verify(self, request: Verify, by: str) -> OperationAnswer:
        """Raises ``NotFound`` for the application, ``Conflict`` while the store is being worked on."""
        self._roots(request.application)
        return operation_answer(self.worker.begin("verify", request.model_dump(mode="json"), by), None)

    def _collect(self, arguments: dict[str, Any], report: Report) -> dict[str, Any]:
        request = self._request(Collect.model_validate(arguments))
        plan, deleted = Collection(self._database, self._store).run(request, report)
        return collection_answer(plan, deleted).model_dump(mode="json")

    def _verify(self, arguments: dict[str, Any], report: Report) -> dict[str, Any]:
        request = Verify.model_validate(arguments)
        verification = Verification(self._store, self._roots(request.application), quick=request.quick, progress=report)
        return verification_answer(verification.run(repair=request.repair)).model_dump(mode="json")

    def _roots(self, application: str | None) -> list[ManifestReference]:
        with self._database.reading() as session:
            kept = RetentionRepository(session).known(now()).kept
            if application is None:
                return list(kept.values())
            row = ApplicationRepository(session).named(application)
            own = select(Branch.id).where(Branch.application == row.id)
            branches = {*session.scalars(own), *horizon_of(session, row).lineage}
            return [reference for key, reference in kept.items() if key.branch in branches]

    def _request(self, request: Collect) -> CollectionRequest:
        requested = request.grace_seconds
        seconds = self._settings.grace_seconds if requested is None else requested
        return CollectionRequest(timedelta(seconds=seconds), frozenset(request.foreign))
