"""Changes to a catalog that was loaded from a backup: it becomes a new incarnation, and no process of the previous one
may continue.

All functions run in the transaction that loads the catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from epochal.contracts.catalog import EpochTerms, Failure, ManifestReference, ShownWatermarks
from epochal.declarations.entry import ENTRIES, calls_through
from epochal.engine.epoch import State
from epochal.errors import EpochalError
from epochal.service.catalog.executions import GOING_ON, begin_execution
from epochal.service.catalog.installations import InstallationRepository
from epochal.service.catalog.models import (
    Application,
    Attempt,
    AuditEntry,
    Branch,
    Directive,
    Epoch,
    EventStream,
    Execution,
    Operation,
    RevokedToken,
    Token,
    Version,
    Webhook,
)
from epochal.service.catalog.operations import end
from epochal.service.catalog.records import columns_of, json_of, manifest_of, terms_of
from epochal.service.catalog.store_files import StoreFiles
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.operations import Event
from epochal.service.domain.secrets import UserToken
from epochal.snapshots.manifest import Manifest
from epochal.wire.problems import problem_of
from epochal.wire.projects import DEFAULT_PROJECT
from epochal.wire.tokens import Role

LEAP = 1_000_000
"""Increment of attempt and event numbers, above all numbers that were assigned after the backup."""
_BY = "restore"


class Restored(EpochalError):
    """The catalog was restored from a backup in the meantime."""

    slug = "restored"


@dataclass(frozen=True)
class Incarnation:
    """``source``: description of the backup."""

    id: str
    source: str
    store: str
    moment: datetime


@dataclass(frozen=True)
class Standing:
    """An application after the load. ``head``: its latest decided snapshot. ``ran``: whether it should be running."""

    name: str
    branch: str
    head: ManifestReference | None
    ran: bool


class IncarnationRepository:
    def __init__(self, session: Session, incarnation: Incarnation) -> None:
        self._session = session
        self._incarnation = incarnation
        message = f"Backup {incarnation.source} was restored on {incarnation.moment:%Y-%m-%d %H:%M} UTC."
        self._failure = Failure(type=Restored.slug, message=f"{message} Start the application to continue.")
        self._problem = problem_of(Restored(f"{message} Repeat the request if it is still needed."))

    def begin(self, token: UserToken) -> list[Standing]:
        """Begin the incarnation. ``token``: the new admin token; all others are revoked. Returns each application and
        whether it ran."""
        moment = self._incarnation.moment
        installation = InstallationRepository(self._session)
        row = installation.ensure()
        installation.new_cursor_key(row)
        row.incarnation, row.store = self._incarnation.id, self._incarnation.store
        row.restored_from, row.restored_at = self._incarnation.source, moment
        self._revoke_tokens(token)
        ran = self._end_executions()
        self._end_operations()
        self._fence()
        StoreFiles(self._session).give_up_bundles()
        # Event numbers assigned after the backup are not reused, and listeners that have seen one receive an error.
        above = EventStream.last + LEAP
        self._session.execute(update(EventStream).values(last=above, expired=above))
        # Deliveries that another control plane had claimed are repeated, with the same ids.
        self._session.execute(update(Webhook).values(next_at=moment))
        source = self._incarnation.source
        self._session.add(
            AuditEntry(
                at=moment, token=None, action=_BY, target=source[:500], outcome=200, request=self._incarnation.id
            )
        )
        self._session.flush()
        return [self._standing(application, application.id in ran) for application in self._applications()]

    def go_on_to(self, branch: str, chain: Sequence[tuple[ManifestReference, Manifest]]) -> None:
        """Add epochs that the store contains and the backup does not, oldest first. They are decided and will be
        committed again."""
        row = self._session.get_one(Branch, branch)
        for reference, manifest in chain:
            epoch = self._session.get(Epoch, (branch, reference.epoch))
            if epoch is None:
                execution = self._execution_of(row, manifest)
                epoch = Epoch(branch=branch, epoch=reference.epoch, execution=execution, started_at=manifest.created_at)
                self._session.add(epoch)
            epoch.attempt, epoch.state, epoch.failure = manifest.attempt, State.PREPARED.value, None
            parent = manifest.parent
            epoch.parent_branch = None if parent is None else parent.branch
            epoch.parent_epoch = None if parent is None else parent.epoch
            epoch.manifest_path, epoch.manifest_sha256 = reference.path, reference.sha256
            epoch.prepared_at, epoch.version = manifest.created_at, self._version_of(row, manifest)
            for name, value in {**terms_of(_terms(manifest)), **columns_of(manifest.counts)}.items():
                setattr(epoch, name, value)
            if epoch.calls_through is None and parent is not None:
                before = self._session.get(Epoch, (parent.branch, parent.epoch))
                epoch.calls_through = None if before is None else before.calls_through
            row.head_branch, row.head_epoch = branch, reference.epoch
        self._session.flush()

    def start(self, names: Sequence[str]) -> None:
        """Resume the supervision of these applications."""
        for application in self._applications():
            if application.name in names:
                begin_execution(self._session, application)

    def uses_artifact(self, sha256: str) -> bool:
        """Return whether a version uses the artifact."""
        return (
            self._session.scalars(select(Version.number).where(Version.artifact == sha256).limit(1)).first() is not None
        )

    def branches(self) -> set[str]:
        return set(self._session.scalars(select(Branch.id)))

    def _revoke_tokens(self, token: UserToken) -> None:
        moment = self._incarnation.moment
        for row in self._session.scalars(select(Token)).all():
            if self._session.get(RevokedToken, row.id) is None:
                self._session.add(RevokedToken(id=row.id, name=row.name, revoked_at=moment, revoked_by=_BY))
        self._session.execute(delete(Token))
        self._session.add(
            Token(
                id=token.id,
                name="admin",
                roles={DEFAULT_PROJECT: Role.ADMIN.value},
                secret_sha256=token.sha256,
                created_at=moment,
                created_by=_BY,
            )
        )

    def _end_executions(self) -> set[str]:
        """The ids of applications that were running and not stopping."""
        moment, failure = self._incarnation.moment, json_of(self._failure)
        running = update(Attempt).where(Attempt.state == "running")
        self._session.execute(running.values(state="lost", failure=failure, ended_at=moment))
        self._session.execute(update(Attempt).values(process=None, token_sha256=None))
        unfinished = update(Directive).where(Directive.completed_at.is_(None))
        self._session.execute(unfinished.values(completed_at=moment, failure=failure))
        ran = set()
        for row in self._session.scalars(select(Execution).where(Execution.state.in_(GOING_ON))).all():
            if row.state == "stopping":
                row.state = "stopped"
            else:
                ran.add(row.application)
                row.state, row.failure = "failed", failure
            row.ended_at, row.status = moment, None
        return ran

    def _end_operations(self) -> None:
        for row in self._session.scalars(select(Operation).where(Operation.state == "running")).all():
            end(row, Event.FAIL, error=self._problem)

    def _fence(self) -> None:
        """Fence surviving drivers in the catalog and in sinks: their attempt numbers are lower than all new ones."""
        raised = func.coalesce(Branch.last_attempt, 0) + LEAP
        self._session.execute(
            update(Branch)
            .values(attempt=raised, last_attempt=raised, owned=False)
            .execution_options(synchronize_session=False)
        )
        self._session.expire_all()

    def _applications(self) -> Sequence[Application]:
        query = select(Application).where(Application.deleted_at.is_(None)).order_by(Application.name)
        return self._session.scalars(query).all()

    def _standing(self, application: Application, ran: bool) -> Standing:
        branch = self._session.get_one(Branch, application.branch)
        head = None
        if branch.head_branch is not None and branch.head_epoch is not None:
            row = self._session.get(Epoch, (branch.head_branch, branch.head_epoch))
            head = None if row is None else manifest_of(row)
        return Standing(application.name, application.branch, head, ran)

    def _execution_of(self, branch: Branch, manifest: Manifest) -> str:
        """An execution that is not in the backup gets a row, which is over."""
        if self._session.get(Execution, manifest.execution) is not None:
            return manifest.execution
        application = self._session.get_one(Application, branch.application)
        latest = select(func.max(Version.number)).where(Version.application == application.id)
        moment = self._incarnation.moment
        row = Execution(
            id=manifest.execution if len(manifest.execution) <= 32 else new_id(),
            application=application.id,
            version=self._session.scalars(latest).one(),
            branch=branch.id,
            state="failed",
            attempt=manifest.attempt,
            available_now=False,
            drain=True,
            failure=json_of(self._failure),
            started_at=manifest.created_at,
            ended_at=moment,
        )
        self._session.add(row)
        application.execution = row.id
        self._session.flush()
        return row.id

    def _version_of(self, branch: Branch, manifest: Manifest) -> int | None:
        rows = self._session.scalars(
            select(Version)
            .where(Version.application == branch.application, Version.artifact == manifest.artifact)
            .order_by(Version.number.desc())
        ).all()
        same = [row.number for row in rows if row.parameters == manifest.parameters]
        return next(iter(same), None)


def _terms(manifest: Manifest) -> EpochTerms:
    """The terms of a prepared epoch, as far as its manifest contains them."""
    return EpochTerms(
        changes=manifest.changes,
        opened_for=manifest.conditions.opened_for,
        watermarks={name: ShownWatermarks.of(place) for name, place in manifest.clock.places.items()},
        calls_through=calls_through(manifest.slices.get(ENTRIES)),
    )
