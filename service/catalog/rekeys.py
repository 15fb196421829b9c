"""Rekeys in the catalog: their plan, and the move of the application to the new snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.configuration import Acceptance
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import Conflict
from epochal.pipeline.description import GraphDescription
from epochal.service.catalog.applications import ApplicationRepository, Revisions
from epochal.service.catalog.branch_writer import following_epoch
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import ENDED, BranchOrigin, add_branch, check_not_drained
from epochal.service.catalog.models import Application, Artifact, Branch, Epoch, Operation, Version
from epochal.service.catalog.operation_completion import succeed
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.records import head_of, manifest_of
from epochal.service.catalog.rollbacks import check_committed
from epochal.service.catalog.types import now
from epochal.service.catalog.versions import VersionRepository
from epochal.service.domain.identifiers import new_branch_id
from epochal.snapshots.manifest import Manifest
from epochal.wire.configuration import ApplicationConfiguration, merged_configuration
from epochal.wire.versions import Rekey, RekeyArguments, RekeyResult


@dataclass(frozen=True)
class RekeyPlan:
    """Input and output of a rekey: the new snapshot ``at`` is on a separate branch."""

    application: str
    head: ManifestReference
    at: EpochKey
    before: Version
    artifact: Artifact
    configuration: ApplicationConfiguration
    by: str


class RekeyRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def ask(self, name: str, request: Rekey, revisions: Revisions) -> Application:
        """The application, which must be stopped. Raises ``Conflict``, ``OptionError``."""
        application = ApplicationRepository(self._session).locked(name, revisions)
        OperationRepository(self._session).check_none_running(application)
        check_not_drained(self._session, application)
        self._plan(application, request, new_branch_id(name), "")
        return application

    def begin_try(self, operation: Operation) -> RekeyPlan:
        """A plan with a new branch, whose name is added to the operation. Raises the errors of :meth:`ask`."""
        arguments = RekeyArguments.model_validate(operation.arguments)
        application = self._session.get_one(Application, operation.application)
        branch = new_branch_id(application.name)
        operation.arguments = {**operation.arguments, "branches": [*arguments.branches, branch]}
        return self._plan(application, arguments.request, branch, operation.created_by)

    def move(
        self,
        operation: Operation,
        plan: RekeyPlan,
        snapshot: ManifestReference,
        manifest: Manifest,
        message: str | None,
    ) -> None:
        """Add version, branch and snapshot, and end the operation. Raises ``Conflict`` after a concurrent change."""
        application = ApplicationRepository(self._session).locked(plan.application)
        latest = VersionRepository(self._session).latest(application)
        if self._settled_head(application) != plan.head or latest.number != plan.before.number:
            raise Conflict(f"Application {plan.application!r} was changed while it was re-keyed; try again.")
        acceptance = RekeyArguments.model_validate(operation.arguments).request.acceptance
        number = self._add_version(application, latest, plan, message, acceptance)
        origin = BranchOrigin("rekey", plan.head.key, message)
        branch = add_branch(self._session, application, origin, plan.by, plan.at.branch)
        self._session.flush()
        self._add_epoch(application, plan, snapshot, manifest, number)
        branch.head_branch, branch.head_epoch = plan.at.branch, plan.at.epoch
        branch.committed_epochs = 1
        result = RekeyResult(version=number, branch=plan.at.branch, epoch=plan.at.epoch)
        succeed(self._session, application, operation, result.model_dump(mode="json"))
        self._session.flush()

    def _plan(self, application: Application, request: Rekey, branch: str, by: str) -> RekeyPlan:
        head = self._settled_head(application)
        versions = VersionRepository(self._session)
        before = versions.latest(application)
        now_configured = ApplicationConfiguration.model_validate(before.configuration)
        parallelism = request.parallelism or min(now_configured.parallelism, request.max_parallelism)
        configuration = merged_configuration(
            before.configuration,
            {
                "max_parallelism": request.max_parallelism,
                "parallelism": parallelism,
                "parallelisms": {
                    operator: min(number, request.max_parallelism)
                    for operator, number in now_configured.parallelisms.items()
                },
            },
        )
        if configuration.max_parallelism == now_configured.max_parallelism:
            raise Conflict(f"Application {application.name!r} has max_parallelism {request.max_parallelism} already.")
        number = following_epoch(self._session, ApplicationRepository(self._session).branch(application))
        artifact = versions.artifact(before.artifact)
        return RekeyPlan(application.name, head, EpochKey(branch, number), before, artifact, configuration, by)

    def _settled_head(self, application: Application) -> ManifestReference:
        """The head of a stopped application without uncommitted epochs."""
        repository = ApplicationRepository(self._session)
        execution = repository.execution(application)
        if execution is None or execution.state not in ENDED:
            state = "was never started" if execution is None else f"is {execution.state}"
            raise Conflict(f"Application {application.name!r} {state}; only one that is stopped can be re-keyed.")
        branch = repository.branch(application)
        check_committed(self._session, application, branch)
        key = head_of(branch)
        row = None if key is None else self._session.get(Epoch, (key.branch, key.epoch))
        reference = None if row is None else manifest_of(row)
        if reference is None:
            raise Conflict(
                f"Application {application.name!r} has no snapshot yet; submit it again with other key groups."
            )
        return reference

    def _add_version(
        self,
        application: Application,
        latest: Version,
        plan: RekeyPlan,
        message: str | None,
        acceptance: Acceptance,
    ) -> int:
        versions = VersionRepository(self._session)
        number = versions.next_number(application)
        graph = None if latest.graph is None else GraphDescription.model_validate(latest.described)
        parameters = latest.parameters
        versions.add(
            application,
            number,
            latest.artifact,
            parameters,
            plan.configuration,
            graph,
            plan.by,
            message,
            acceptance,
        )
        return number

    def _add_epoch(
        self, application: Application, plan: RekeyPlan, snapshot: ManifestReference, manifest: Manifest, version: int
    ) -> None:
        assert application.execution is not None  # a settled application has run
        moment = now()
        self._session.add(
            Epoch(
                branch=plan.at.branch,
                epoch=plan.at.epoch,
                execution=application.execution,
                attempt=0,
                state=State.COMMITTED.value,
                parent_branch=plan.head.branch,
                parent_epoch=plan.head.epoch,
                manifest_path=snapshot.path,
                manifest_sha256=snapshot.sha256,
                version=version,
                changes=[change.model_dump(mode="json") for change in manifest.changes],
                opened_for=["command"],
                calls_through=self._session.get_one(Epoch, (plan.head.branch, plan.head.epoch)).calls_through,
                rows_in=0,
                rows_out=0,
                state_rows=0,
                state_bytes=0,
                started_at=moment,
                prepared_at=moment,
                committed_at=moment,
            )
        )


def has_branch(database: Database, branch: str) -> bool:
    with database.reading() as session:
        return session.get(Branch, branch) is not None
