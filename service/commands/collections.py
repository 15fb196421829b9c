"""Garbage collection and verification of the store: asked for, planned, and carried out in the background."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

from epochal.contracts.catalog import ManifestReference
from epochal.errors import Conflict, EpochalError
from epochal.service.catalog.collections import RetentionRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.operation_claims import Claim
from epochal.service.commands.collecting import Collection, CollectionRequest
from epochal.service.domain.settings import Settings
from epochal.service.domain.store_answers import collection_answer, plan_answer, verification_answer
from epochal.service.runtime.operations import LOOK_SECONDS, OperationWorker, Verb
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.verification import Verification
from epochal.wire.collections import Collect, CollectionAnswer, CollectionPlanAnswer, VerificationAnswer, Verify
from epochal.wire.operations import OperationAnswer

log = logging.getLogger("epochal.retention")

BY_ITSELF = "epochal"


class CollectionService:
    """What either leaves in the middle, the next collection or verification finds as any other file."""

    def __init__(self, settings: Settings, database: Database, store: SnapshotStore, worker: OperationWorker) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._worker = worker
        self._every_seconds = settings.collect_every_seconds
        self._next = time.monotonic() + (self._every_seconds or 0)
        verbs: list[Verb[Any]] = [Verb("collect", Collect, self._collect), Verb("verify", Verify, self._verify)]
        worker.register("store", verbs, self._collect_by_itself, min(LOOK_SECONDS, self._every_seconds or LOOK_SECONDS))

    def plan(self, request: Collect) -> CollectionPlanAnswer:
        """What a collection would do now. Changes nothing."""
        return plan_answer(Collection(self._database, self._store).plan(self._request(request)))

    def collect(self, request: Collect, by: str) -> OperationAnswer:
        """Raises ``Conflict`` while the store is being worked on."""
        return self._worker.begin("collect", by, lambda session: (None, request))

    def verify(self, request: Verify, by: str) -> OperationAnswer:
        """Raises ``NotFound`` for the application, ``Conflict`` while the store is being worked on."""
        self._roots(request.application)
        return self._worker.begin("verify", by, lambda session: (None, request))

    def _collect_by_itself(self) -> None:
        if self._every_seconds is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_seconds
        try:
            self.collect(Collect(), BY_ITSELF)
        except Conflict:
            return  # somebody else is at it
        except EpochalError as error:
            log.warning("no collection: %s", error)

    def _collect(self, claim: Claim, request: Collect) -> CollectionAnswer:
        plan, deleted = Collection(self._database, self._store).run(self._request(request), claim.progress)
        return collection_answer(plan, deleted)

    def _verify(self, claim: Claim, request: Verify) -> VerificationAnswer:
        roots = self._roots(request.application)
        verification = Verification(self._store, roots, quick=request.quick, progress=claim.progress)
        return verification_answer(verification.run(repair=request.repair))

    def _roots(self, application: str | None) -> list[ManifestReference]:
        with self._database.reading() as session:
            return RetentionRepository(session).kept(application)

    def _request(self, request: Collect) -> CollectionRequest:
        requested = request.grace_seconds
        seconds = self._settings.grace_seconds if requested is None else requested
        return CollectionRequest(timedelta(seconds=seconds), frozenset(request.foreign))
