"""Re-keying: the state of a stopped application written anew with other key groups, on a branch of its own."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import Conflict
from epochal.service.applications.configuration import ApplicationConfiguration, merged_configuration
from epochal.service.applications.repository import ApplicationRepository
from epochal.service.artifacts.files import artifact_path
from epochal.service.builder.wire import RekeyOf
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import ENDED, BranchOrigin, add_branch
from epochal.service.catalog.identifiers import new_branch_id
from epochal.service.catalog.lines import following_epoch
from epochal.service.catalog.models import Application, Epoch, Version
from epochal.service.catalog.records import head_of, manifest_of
from epochal.service.catalog.rollbacks import check_committed
from epochal.service.catalog.types import now
from epochal.service.operations.repository import OperationRepository
from epochal.service.ports import Builder
from epochal.service.rekey.schemas import Rekey
from epochal.service.settings import Settings
from epochal.service.versions.repository import VersionRepository
from epochal.service.versions.schemas import VersionAnswer
from epochal.service.versions.service import version_answer
from epochal.snapshots.store import SnapshotStore


@dataclass(frozen=True)
class _Plan:
    """What is read, and what will be written."""

    head: ManifestReference
    at: EpochKey
    before: Version
    configuration: ApplicationConfiguration


class RekeyService:
    def __init__(self, settings: Settings, database: Database, builder: Builder, store: SnapshotStore) -> None:
        self._settings = settings
        self._database = database
        self._builder = builder
        self._store = store

    def rekey(self, name: str, request: Rekey, by: str) -> VersionAnswer:
        """Raises ``Conflict`` unless it is stopped with everything committed, ``OptionError``, ``SnapshotError``."""
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(name)
            plan = _plan(session, row, request)
            artifact = VersionRepository(session).artifact(plan.before.artifact)
        location = artifact_path(self._settings.artifacts_directory, artifact.sha256, artifact.filename)
        wanted = RekeyOf(
            application=name,
            store=self._settings.store_url,
            head=plan.head,
            at=plan.at,
            by=by,
            message=request.message,
        )
        try:
            snapshot = self._builder.rekey(location, plan.before.parameters, plan.configuration, wanted)
            with self._database.writing() as session:
                return version_answer(_move(session, self._store, name, plan, snapshot, request.message, by))
        except BaseException:
            # Nothing names its files yet; what cannot be removed now is left to garbage collection.
            for path in self._store.list(plan.at.branch):
                self._store.delete(path)
            raise


def _plan(session: Session, application: Application, request: Rekey) -> _Plan:
    head = _settled(session, application)
    before = VersionRepository(session).latest(application)
    now_configured = ApplicationConfiguration.model_validate(before.configuration)
    parallelism = request.parallelism or min(now_configured.parallelism, request.max_parallelism)
    configuration = merged_configuration(
        before.configuration, {"max_parallelism": request.max_parallelism, "parallelism": parallelism}
    )
    if configuration.max_parallelism == now_configured.max_parallelism:
        raise Conflict(f"Application {application.name!r} has max_parallelism {request.max_parallelism} already.")
    number = following_epoch(session, ApplicationRepository(session).branch(application))
    at = EpochKey(new_branch_id(application.name), number)
    return _Plan(head, at, before, configuration)


def _settled(session: Session, application: Application) -> ManifestReference:
    """The head of an application of which nothing runs and nothing is to be committed any more."""
    repository = ApplicationRepository(session)
    execution = repository.execution(application)
    if execution is None or execution.state not in ENDED:
        state = "was never started" if execution is None else f"is {execution.state}"
        raise Conflict(f"Application {application.name!r} {state}; only one that is stopped can be re-keyed.")
    OperationRepository(session).check_none_running(application)
    branch = repository.branch(application)
    check_committed(session, application, branch)
    key = head_of(branch)
    row = None if key is None else session.get(Epoch, (key.branch, key.epoch))
    reference = None if row is None else manifest_of(row)
    if reference is None:
        raise Conflict(f"Application {application.name!r} has no snapshot yet; submit it anew with other key groups.")
    return reference


def _move(
    session: Session,
    store: SnapshotStore,
    name: str,
    plan: _Plan,
    snapshot: ManifestReference,
    message: str | None,
    by: str,
) -> Version:
    """Version, branch and snapshot in one transaction. ``Conflict`` when somebody was quicker."""
    application = ApplicationRepository(session).locked(name)
    versions = VersionRepository(session)
    latest = versions.latest(application)
    if _settled(session, application) != plan.head or latest.number != plan.before.number:
        raise Conflict(f"Application {name!r} was changed while it was re-keyed; try again.")
    graph = version_answer(latest).graph
    number = versions.next_number(application)
    parameters = dict(latest.parameters)
    version = versions.add(application, number, latest.artifact, parameters, plan.configuration, graph, by, message)
    execution = application.execution
    assert execution is not None  # it is settled: it has run
    branch = add_branch(session, application, BranchOrigin("rekey", plan.head.key, message), by, plan.at.branch)
    session.flush()
    moment = now()
    changes = store.read_manifest(snapshot).changes
    session.add(
        Epoch(
            branch=plan.at.branch,
            epoch=plan.at.epoch,
            execution=execution,
            attempt=0,
            state=State.COMMITTED.value,
            parent_branch=plan.head.branch,
            parent_epoch=plan.head.epoch,
            manifest_path=snapshot.path,
            manifest_sha256=snapshot.sha256,
            version=number,
            changes=[change.model_dump(mode="json") for change in changes],
            rows_in=0,
            rows_out=0,
            state_rows=0,
            state_bytes=0,
            started_at=moment,
            prepared_at=moment,
            committed_at=moment,
        )
    )
    branch.head_branch, branch.head_epoch = plan.at.branch, plan.at.epoch
    session.flush()
    return version
