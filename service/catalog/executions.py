"""Executions and their attempts. Functions that begin or end them run inside a write transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session, aliased

from epochal.contracts.catalog import Failure
from epochal.contracts.conditions import drained
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import Conflict, IncompatibleState, NotFound
from epochal.service.catalog.branch_writer import BranchWriter
from epochal.service.catalog.folding import stand_on
from epochal.service.catalog.models import Application, Artifact, Attempt, Branch, Epoch, Execution, Version
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.records import head_of, is_drained, json_of
from epochal.service.catalog.types import database_now, now
from epochal.service.catalog.webhooks import enqueue
from epochal.service.domain.identifiers import new_branch_id, new_id
from epochal.service.domain.pages import PageRequest, Part

ENDED = ("stopped", "failed")
GOING_ON = ("starting", "running", "stopping")


class ExecutionRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, id: str) -> Execution:
        row = self._session.get(Execution, id)
        if row is None:
            raise NotFound(f"There is no execution {id!r}.")
        return row

    def of(self, application: Application, id: str) -> Execution:
        """Raises ``NotFound``, also for executions of other applications."""
        row = self._session.get(Execution, id)
        if row is None or row.application != application.id:
            raise NotFound(f"Application {application.name!r} has no execution {id!r}.")
        return row

    def page(self, application: Application, page: PageRequest) -> Part:
        """Listed newest first."""
        query = select(Execution).where(Execution.application == application.id)
        return paginate(self._session, query, page, [Execution.id], descending=True)

    def not_over(self) -> Sequence[tuple[Execution, str, dict[str, Any]]]:
        """Active executions, with the names and configurations of their applications."""
        query = (
            select(Execution, Application.name, Version.configuration)
            .join(Application, Application.id == Execution.application)
            .join(Version, and_(Version.application == Execution.application, Version.number == Execution.version))
            .where(Execution.state.in_(GOING_ON))
            .order_by(Execution.id)
        )
        return [(row, name, configuration) for row, name, configuration in self._session.execute(query)]

    def attempts(self, execution: Execution) -> Sequence[Attempt]:
        """Listed oldest first."""
        query = select(Attempt).where(Attempt.execution == execution.id).order_by(Attempt.number)
        return self._session.scalars(query.execution_options(populate_existing=True)).all()

    def with_attempt(self, application: Application, number: int, branch: str | None) -> Execution | None:
        """The newest execution that has an attempt of this number, on ``branch`` if given."""
        query = (
            select(Execution)
            .join(Attempt, Attempt.execution == Execution.id)
            .where(Execution.application == application.id, Attempt.number == number)
            .order_by(Execution.id.desc())
        )
        if branch is not None:
            query = query.where(Execution.branch == branch)
        return self._session.scalars(query.limit(1)).first()

    def latest_attempts(self, at_most: int) -> Mapping[str, Sequence[Attempt]]:
        """The latest ``most`` attempts of each active execution, oldest first. Their numbers are consecutive."""
        one = aliased(Attempt)
        last = select(func.max(one.number)).where(one.execution == Execution.id).scalar_subquery()
        query = (
            select(Attempt)
            .join(Execution, Execution.id == Attempt.execution)
            .where(Execution.state.in_(GOING_ON), Attempt.number > last - at_most)
            .order_by(Attempt.execution, Attempt.number)
        )
        found: dict[str, list[Attempt]] = {}
        for attempt in self._session.scalars(query.execution_options(populate_existing=True)):
            found.setdefault(attempt.execution, []).append(attempt)
        return found

    def attempts_of(self, executions: Collection[str]) -> Sequence[Attempt]:
        """Listed in any order."""
        return self._session.scalars(select(Attempt).where(Attempt.execution.in_(executions))).all()

    def attempt(self, execution: Execution, number: int) -> Attempt:
        row = self._session.get(Attempt, (execution.id, number))
        if row is None:
            raise NotFound(f"Execution {execution.id} has no attempt {number}.")
        return row

    def application(self, execution: Execution) -> Application:
        return self._session.get_one(Application, execution.application)

    def version(self, execution: Execution) -> Version:
        return self._session.get_one(Version, (execution.application, execution.version))

    def artifact(self, version: Version) -> Artifact:
        return self._session.get_one(Artifact, version.artifact)

    def artifact_of(self, execution: Execution, sha256: str) -> Artifact:
        """Raises ``NotFound`` unless a version of the execution's application uses the artifact."""
        query = select(Version.number).where(Version.application == execution.application, Version.artifact == sha256)
        if self._session.scalars(query.limit(1)).first() is None:
            raise NotFound(f"No version of this application uses an artifact {sha256!r}.")
        return self._session.get_one(Artifact, sha256)


@dataclass(frozen=True)
class BranchOrigin:
    """The snapshot at which a branch begins, if any, and why."""

    kind: Literal["start", "fork", "rollback", "import", "rekey"]
    parent: EpochKey | None = None
    message: str | None = None


def add_branch(
    session: Session, application: Application, origin: BranchOrigin, by: str, id: str | None = None
) -> Branch:
    """Create a branch and make it the application's current one. Its head is its parent; no state is copied.

    Raises ``SnapshotExpired`` if the parent has been collected.
    """
    parent = origin.parent
    if parent is not None:
        stand_on(session, parent)
    branch = Branch(
        id=id or new_branch_id(application.name),
        application=application.id,
        kind=origin.kind,
        parent_branch=parent.branch if parent else None,
        parent_epoch=parent.epoch if parent else None,
        head_branch=parent.branch if parent else None,
        head_epoch=parent.epoch if parent else None,
        attempt=0,
        owned=False,
        last_attempt=0,
        message=origin.message,
        created_at=now(),
        created_by=by,
    )
    application.branch = branch.id
    application.updated_at = now()
    session.add(branch)
    session.flush()
    return branch


def drained_head(session: Session, application: Application) -> Epoch | None:
    """The application's head, if all of its input had ended, so that no epoch can follow it.

    ``None`` while it is not committed: its commits have to be completed.
    """
    head = head_of(session.get_one(Branch, application.branch, populate_existing=True))
    row = None if head is None else session.get(Epoch, (head.branch, head.epoch), populate_existing=True)
    return row if row is not None and is_drained(row) and row.state == State.COMMITTED else None


def check_not_drained(session: Session, application: Application) -> None:
    """Raises ``IncompatibleState`` with a remedy."""
    head = drained_head(session, application)
    if head is not None:
        raise IncompatibleState(
            f"Application {application.name!r} is at its end. {drained(head.epoch, head.parent_epoch)}"
        )


def latest_version(session: Session, application: str) -> Version:
    """The latest version that a start would use; versions whose upgrade failed are skipped."""
    query = select(Version).where(Version.application == application, Version.failure.is_(None))
    return session.scalars(query.order_by(Version.number.desc()).limit(1)).one()


def latest_versions(session: Session, applications: Collection[str]) -> Mapping[str, Version]:
    """:func:`latest_version` of several applications, by id."""
    numbers = (
        select(Version.application, func.max(Version.number).label("number"))
        .where(Version.application.in_(applications), Version.failure.is_(None))
        .group_by(Version.application)
        .subquery()
    )
    chosen = (Version.application == numbers.c.application) & (Version.number == numbers.c.number)
    return {row.application: row for row in session.scalars(select(Version).join(numbers, chosen))}


def begin_execution(
    session: Session, application: Application, *, available_now: bool = False, drain: bool = True
) -> Execution:
    """Begin a run of the latest version on the current branch. Raises ``Conflict`` while an execution is active.

    ``available_now``: process the input available at the start, then end. ``drain``: commit a last epoch when all input
    has ended.
    """
    current = session.get(Execution, application.execution) if application.execution else None
    if current is not None and current.state not in ENDED:
        raise Conflict(f"Application {application.name!r} is {current.state}; stop it first.")
    execution = Execution(
        id=new_id(),
        application=application.id,
        version=latest_version(session, application.id).number,
        branch=application.branch,
        state="starting",
        attempt=0,
        available_now=available_now,
        drain=drain,
        started_at=now(),
    )
    application.execution = execution.id
    application.updated_at = now()
    session.add(execution)
    session.flush()
    return execution


def begin_attempt(session: Session, execution: Execution, token_sha256: str | None) -> Attempt:
    """Begin the next attempt, numbered along the branch. Raises ``Conflict`` if an attempt is running or the execution
    does not continue."""
    branch = session.get_one(Branch, execution.branch, with_for_update=True, populate_existing=True)
    session.refresh(execution)
    if execution.state not in ("starting", "running"):
        raise Conflict(f"Execution {execution.id} is {execution.state}; it gets no further attempt.")
    running = select(func.count()).where(Attempt.execution == execution.id, Attempt.state == "running")
    if session.scalar(running):
        raise Conflict(f"Execution {execution.id} has an attempt that is running; end it first.")
    branch.last_attempt += 1
    branch.attempts += 1
    branch.restarts += execution.attempt > 0
    execution.attempt = branch.last_attempt
    execution.state = "starting"
    attempt = Attempt(
        execution=execution.id,
        number=branch.last_attempt,
        state="running",
        token_sha256=token_sha256,
        started_at=database_now(session),
    )
    session.add(attempt)
    return attempt


def end_attempt(
    session: Session,
    execution: Execution,
    number: int,
    state: Literal["ended", "lost", "failed"],
    failure: Failure | None,
) -> bool:
    """End an attempt and fence its driver. Returns whether this call ended it; an attempt that is over stays
    unchanged."""
    writer = BranchWriter(session, execution.branch, execution.id, number)
    writer.lock()
    attempt = session.get(Attempt, (execution.id, number), populate_existing=True)
    if attempt is None:
        raise NotFound(f"Execution {execution.id} has no attempt {number}.")
    if attempt.state != "running":
        return False
    attempt.state = state
    attempt.failure = json_of(failure)
    attempt.ended_at = database_now(session)
    if execution.state == "running" and failure is not None:
        execution.state = "starting"
    session.flush()
    writer.give_up()
    if failure is not None:
        data = {"execution": execution.id, "attempt": number, "failure": json_of(failure)}
        enqueue(session, "attempt.failed", execution.branch, f"{execution.id}/{number}/failed", lambda: data)
    return True
