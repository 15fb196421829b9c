"""Garbage collection and verification of the store: asked for, planned, and carried out in the background."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from epochal.contracts.catalog import ManifestReference
from epochal.errors import Conflict
from epochal.service.catalog.database import Database
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.retention import RetentionRepository
from epochal.service.catalog.types import database_now
from epochal.service.commands.artifacts import ArtifactService
from epochal.service.commands.collecting import Collection, CollectionRequest
from epochal.service.domain.settings import Settings
from epochal.service.domain.store_answers import collection_answer, plan_answer, verification_answer
from epochal.service.runtime.housekeeping import Housekeeping
from epochal.service.runtime.operations import OperationWorker, Verb
from epochal.service.runtime.stored_files import StoredFiles
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.verification import Verification
from epochal.wire.operations import OperationAnswer
from epochal.wire.store import Collect, CollectionAnswer, CollectionPlanAnswer, VerificationAnswer, Verify

log = logging.getLogger("epochal.retention")

BY_ITSELF = "epochal"

_LOOK_SECONDS = 60.0


class CollectionService:
    """What either leaves in the middle, the next collection or verification finds as any other file."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: SnapshotStore,
        files: StoredFiles,
        artifacts: ArtifactService,
        worker: OperationWorker,
        housekeeping: Housekeeping,
    ) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._files = files
        self._artifacts = artifacts
        self._worker = worker
        verbs: list[Verb[Any]] = [Verb("collect", Collect, self._collect), Verb("verify", Verify, self._verify)]
        worker.register("store", verbs)
        every_seconds = settings.collect_every_seconds
        if every_seconds is not None:
            self._every = timedelta(seconds=every_seconds)
            self._begun_at: datetime | None = None
            housekeeping.register("collection", min(_LOOK_SECONDS, every_seconds), self._collect_by_itself)

    def plan(self, request: Collect) -> CollectionPlanAnswer:
        """What a collection would do now. Changes nothing."""
        return plan_answer(self._collection().plan(self._request(request)))

    def collect(self, request: Collect, by: str) -> OperationAnswer:
        """Raises ``Conflict`` while the store is being worked on."""
        return self._worker.begin("collect", by, lambda session: (None, request))

    def verify(self, request: Verify, by: str) -> OperationAnswer:
        """Raises ``NotFound`` for the application, ``Conflict`` while the store is being worked on."""
        self._roots(request.application)
        return self._worker.begin("verify", by, lambda session: (None, request))

    def _collect_by_itself(self) -> bool:
        """So long after the last one, whichever control plane has asked for it."""
        with self._database.reading() as session:
            at, last = database_now(session), OperationRepository(session).latest("collect")
        if self._begun_at is None:
            self._begun_at = at
        if at - (self._begun_at if last is None else last.created_at) >= self._every:
            try:
                self.collect(Collect(), BY_ITSELF)
            except Conflict as conflict:
                log.info("the collection has to wait: %s", conflict)
        return False

    def _collect(self, claim: Claim, request: Collect) -> CollectionAnswer:
        claim.progress("deleting artifacts that were never used")
        self._artifacts.delete_unused()
        self._files.sweep()
        plan, deleted = self._collection().run(self._request(request), claim.progress)
        return collection_answer(plan, deleted)

    def _verify(self, claim: Claim, request: Verify) -> VerificationAnswer:
        roots = self._roots(request.application)
        verification = Verification(self._store, roots, quick=request.quick, progress=claim.progress)
        return verification_answer(verification.run(repair=request.repair))

    def _collection(self) -> Collection:
        return Collection(self._database, self._store, kept_epochs=self._settings.kept.epochs)

    def _roots(self, application: str | None) -> list[ManifestReference]:
        with self._database.reading() as session:
            return RetentionRepository(session).kept(application)

    def _request(self, request: Collect) -> CollectionRequest:
        requested = request.grace_seconds
        seconds = self._settings.grace_seconds if requested is None else requested
        return CollectionRequest(timedelta(seconds=seconds), frozenset(request.foreign))
