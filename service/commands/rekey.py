"""Rekeying: rewrites the state of a stopped application with another number of key groups, on a new branch."""

from __future__ import annotations

from epochal.errors import ForeignFile
from epochal.faults import declare
from epochal.service.catalog.applications import Revisions
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.models import Application
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.rekeys import RekeyRepository, has_branch
from epochal.service.domain.building import RekeyOf
from epochal.service.domain.ports import Builder
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.service.runtime.operations import OperationWorker, Verb
from epochal.snapshots.lineage_bounds import LineageStore
from epochal.wire.operations import OperationAnswer
from epochal.wire.projects import project_of
from epochal.wire.versions import Rekey, RekeyArguments

BEGUN = declare("rekey.begun", "the branch to write is recorded, nothing is written")
WRITTEN = declare("rekey.written", "the snapshot with other key groups is durable, nothing refers to it")
MOVED = declare("rekey.moved", "the application is on its new branch, in an uncommitted transaction")


class RekeyService:
    """Each attempt writes a separate branch, so that no attempt reads another's files; the operation's argument
    ``branches`` records the names before any file exists."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        builder: Builder,
        code: ArtifactCache,
        store: LineageStore,
        worker: OperationWorker,
    ) -> None:
        self._settings = settings
        self._database = database
        self._builder = builder
        self._code = code
        self._store = store
        self._worker = worker
        worker.register("rekeys", [Verb("rekey", RekeyArguments, self.carry_out, self._sweep)])

    def rekey(self, name: str, request: Rekey, by: str, revisions: Revisions = None) -> OperationAnswer:
        """Until it is done, the application cannot be started.

        Raises ``Conflict`` unless it is stopped with everything committed, ``OptionError``.
        """

        def record(session: Session) -> tuple[Application, RekeyArguments]:
            return RekeyRepository(session).ask(name, request, revisions), RekeyArguments(request=request)

        return self._worker.begin("rekey", by, record)

    def carry_out(self, claim: Claim, arguments: RekeyArguments) -> None:
        """End the operation in the transaction that moves the application.

        Raises ``Conflict``, ``OptionError``, ``SnapshotError``, ``StorageFull``; then no file is left behind.
        """
        with self._database.writing() as session:
            plan = RekeyRepository(session).begin_try(claim.decide(session))
        message = arguments.request.message
        target = RekeyOf(
            application=plan.application,
            store=self._settings.store_url,
            head=plan.head,
            at=plan.at,
            by=plan.by,
            message=message,
            acceptance=arguments.request.acceptance,
        )
        code = self._code.file(plan.artifact)
        BEGUN.hit()
        self._sweep(claim, arguments)
        claim.progress(f"rewriting the state of epoch {plan.head.epoch}")
        try:
            snapshot = self._builder.rekey(
                project_of(plan.application),
                code,
                plan.before.parameters,
                plan.configuration,
                target,
                meanwhile=claim.check,
            )
            WRITTEN.hit()
            if snapshot.key != plan.at:
                raise ForeignFile(f"The rekey wrote snapshot {snapshot.key} instead of {plan.at}. Retry the rekey.")
            begun = self._store.with_branches({plan.at.branch: plan.head.key})
            manifest = begun.read_manifest(snapshot)
            with self._database.writing() as session:
                RekeyRepository(session).move(claim.decide(session), plan, snapshot, manifest, message)
                MOVED.hit()
        except BaseException:
            self._clear(plan.at.branch)
            raise

    def _sweep(self, claim: Claim, arguments: RekeyArguments) -> None:
        for branch in arguments.branches:
            self._clear(branch)

    def _clear(self, branch: str) -> None:
        """Remove the files of an attempt, unless its move was committed and only the answer was lost."""
        if not has_branch(self._database, branch):
            for path in self._store.list(branch):
                self._store.delete(path)
