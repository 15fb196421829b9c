"""Re-keying: the state of a stopped application written anew with other key groups, on a branch of its own."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import Conflict
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.branch_writer import following_epoch
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import ENDED, BranchOrigin, add_branch
from epochal.service.catalog.models import Application, Branch, Epoch, Operation, Version
from epochal.service.catalog.outcomes import succeed
from epochal.service.catalog.records import head_of, manifest_of
from epochal.service.catalog.rollbacks import check_committed
from epochal.service.catalog.types import now
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands import rekey_points as points
from epochal.service.commands.proposals import graph_of
from epochal.service.domain.artifact_files import artifact_path
from epochal.service.domain.building import RekeyOf
from epochal.service.domain.identifiers import new_branch_id
from epochal.service.domain.ports import Builder, ControlEvent, EventSink
from epochal.service.domain.settings import Settings
from epochal.service.runtime.operations import Progress
from epochal.snapshots.store import SnapshotStore
from epochal.wire.configuration import ApplicationConfiguration, merged_configuration
from epochal.wire.rekey import Rekey


@dataclass(frozen=True)
class Plan:
    """What is read, and what will be written."""

    head: ManifestReference
    at: EpochKey
    before: Version
    configuration: ApplicationConfiguration


class Rekeying:
    """What is done in the background for an operation.

    Each try writes a branch of its own, so that none reads what another one has written; the operation's argument
    ``branches`` has their names before there is a file.
    """

    def __init__(
        self, settings: Settings, database: Database, builder: Builder, store: SnapshotStore, events: EventSink
    ) -> None:
        self._settings = settings
        self._database = database
        self._builder = builder
        self._store = store
        self._events = events

    def run(self, id: str, progress: Progress) -> None:
        """Ends the operation in the transaction that moves the application.

        Raises ``Conflict``, ``OptionError``, ``SnapshotError``, ``StorageFull``; no file is left behind then.
        """
        with self._database.writing() as session:
            operation = session.get_one(Operation, id)
            by, tried = operation.created_by, list(operation.arguments["branches"])
            request = Rekey.model_validate(operation.arguments["request"])
            application = session.get_one(Application, operation.application)
            name = application.name
            branch = new_branch_id(name)
            operation.arguments = {**operation.arguments, "branches": [*tried, branch]}
            plan = planned(session, application, request, branch)
            artifact = VersionRepository(session).artifact(plan.before.artifact)
        location = artifact_path(self._settings.artifacts_directory, artifact.sha256, artifact.filename)
        target = RekeyOf(
            application=name,
            store=self._settings.store_url,
            head=plan.head,
            at=plan.at,
            by=by,
            message=request.message,
        )
        points.BEGUN.hit()
        for earlier in tried:
            self._clear(earlier)
        progress(f"the state of epoch {plan.head.epoch} is written anew")
        try:
            snapshot = self._builder.rekey(location, plan.before.parameters, plan.configuration, target)
            points.WRITTEN.hit()
            event = self._move(id, plan, snapshot, request.message)
        except BaseException:
            self._clear(branch)
            raise
        self._events.publish(event)

    def _clear(self, branch: str) -> None:
        """Remove what a try has written, unless its move has landed: then only the answer was lost."""
        with self._database.reading() as session:
            landed = session.get(Branch, branch) is not None
        if not landed:
            for path in self._store.list(branch):
                self._store.delete(path)

    def _move(self, id: str, plan: Plan, snapshot: ManifestReference, message: str | None) -> ControlEvent:
        """Version, branch and snapshot in one transaction. ``Conflict`` when somebody was quicker."""
        with self._database.writing() as session:
            operation = session.get_one(Operation, id)
            name = session.get_one(Application, operation.application).name
            application = ApplicationRepository(session).locked(name)
            latest = VersionRepository(session).latest(application)
            if settled_head(session, application) != plan.head or latest.number != plan.before.number:
                raise Conflict(f"Application {name!r} was changed while it was re-keyed; try again.")
            number = _add_version(session, application, latest, plan.configuration, message, operation.created_by)
            origin = BranchOrigin("rekey", plan.head.key, message)
            branch = add_branch(session, application, origin, operation.created_by, plan.at.branch)
            session.flush()
            _add_epoch(session, self._store, application, plan, snapshot, number)
            branch.head_branch, branch.head_epoch = plan.at.branch, plan.at.epoch
            branch.committed_epochs = 1
            result = {"version": number, "branch": plan.at.branch, "epoch": plan.at.epoch}
            event = succeed(application, operation, result)
            session.flush()
            points.MOVED.hit()
        return event


def planned(session: Session, application: Application, request: Rekey, branch: str) -> Plan:
    """Raises ``Conflict`` unless it is stopped with everything committed, ``OptionError``."""
    head = settled_head(session, application)
    before = VersionRepository(session).latest(application)
    now_configured = ApplicationConfiguration.model_validate(before.configuration)
    parallelism = request.parallelism or min(now_configured.parallelism, request.max_parallelism)
    configuration = merged_configuration(
        before.configuration, {"max_parallelism": request.max_parallelism, "parallelism": parallelism}
    )
    if configuration.max_parallelism == now_configured.max_parallelism:
        raise Conflict(f"Application {application.name!r} has max_parallelism {request.max_parallelism} already.")
    number = following_epoch(session, ApplicationRepository(session).branch(application))
    return Plan(head, EpochKey(branch, number), before, configuration)


def settled_head(session: Session, application: Application) -> ManifestReference:
    """The head of an application of which nothing runs and nothing is to be committed any more."""
    repository = ApplicationRepository(session)
    execution = repository.execution(application)
    if execution is None or execution.state not in ENDED:
        state = "was never started" if execution is None else f"is {execution.state}"
        raise Conflict(f"Application {application.name!r} {state}; only one that is stopped can be re-keyed.")
    branch = repository.branch(application)
    check_committed(session, application, branch)
    key = head_of(branch)
    row = None if key is None else session.get(Epoch, (key.branch, key.epoch))
    reference = None if row is None else manifest_of(row)
    if reference is None:
        raise Conflict(f"Application {application.name!r} has no snapshot yet; submit it anew with other key groups.")
    return reference


def _add_version(
    session: Session,
    application: Application,
    latest: Version,
    configuration: ApplicationConfiguration,
    message: str | None,
    by: str,
) -> int:
    versions = VersionRepository(session)
    number = versions.next_number(application)
    versions.add(
        application, number, latest.artifact, dict(latest.parameters), configuration, graph_of(latest), by, message
    )
    return number


def _add_epoch(
    session: Session,
    store: SnapshotStore,
    application: Application,
    plan: Plan,
    snapshot: ManifestReference,
    version: int,
) -> None:
    assert application.execution is not None  # it is settled: it has run
    moment = now()
    session.add(
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
            changes=[change.model_dump(mode="json") for change in store.read_manifest(snapshot).changes],
            opened_for=["command"],
            rows_in=0,
            rows_out=0,
            state_rows=0,
            state_bytes=0,
            started_at=moment,
            prepared_at=moment,
            committed_at=moment,
        )
    )
