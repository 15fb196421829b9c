"""Operations: their rows and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import Conflict, NotFound
from epochal.service.catalog.models import Application, Directive, Execution, Operation
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.types import database_now, now
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.operations import Event, State, advance
from epochal.service.domain.pages import PageRequest, Part
from epochal.wire.operations import OperationAnswer, OperationKind, OperationState
from epochal.wire.problems import Problem
from epochal.wire.projects import DEFAULT_PROJECT, local_name

EXCLUSIVE: Sequence[OperationKind] = ("start", "restart", "stop", "rollback", "upgrade", "rescale", "rekey")
"""Kinds of operations that change what runs. An application has at most one of them at a time."""


class OperationRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, id: str, project: str | None) -> tuple[Operation, str | None]:
        """The operation and its application's name. Raises ``NotFound``, also for operations of another project than
        ``project``."""
        row = self._session.get(Operation, id)
        if row is None or project not in (None, row.project):
            raise NotFound(f"There is no operation {id!r}.")
        return row, self.application_name(row)

    def of(self, application: Application, kind: OperationKind, id: str) -> Operation:
        """Raises ``NotFound``, also for operations of another application or kind."""
        row = self._session.get(Operation, id)
        if row is None or row.kind != kind or row.application != application.id:
            raise NotFound(f"Application {application.name!r} has no {kind} {id!r}.")
        return row

    def locked(self, id: str) -> Operation:
        """Raises ``NotFound``."""
        row = self._session.get(Operation, id, with_for_update=True)
        if row is None:
            raise NotFound(f"There is no operation {id!r}.")
        return row

    def application_name(self, row: Operation) -> str | None:
        """The name of the operation's application; of an unfinished import, the future name."""
        if row.application is not None:
            return self._session.get_one(Application, row.application).name
        return row.arguments["name"] if row.kind == "import" else None

    def page(self, page: PageRequest, project: str, application: Application | None) -> Part:
        """Listed newest first."""
        query = select(Operation).where(Operation.project == project)
        if application is not None:
            query = query.where(Operation.application == application.id)
        return paginate(self._session, query, page, [Operation.id], descending=True)

    def running(self, *kinds: OperationKind) -> Sequence[Operation]:
        """Running operations of these kinds, oldest first."""
        query = select(Operation).where(Operation.state == "running", Operation.kind.in_(kinds))
        return self._session.scalars(query.order_by(Operation.id)).all()

    def check_none_running(self, application: Application, kinds: Sequence[OperationKind] = EXCLUSIVE) -> None:
        """Raises ``Conflict`` naming a running operation of an exclusive kind."""
        query = select(Operation).where(
            Operation.application == application.id, Operation.state == "running", Operation.kind.in_(kinds)
        )
        running = self._session.scalars(query.order_by(Operation.id).limit(1)).first()
        if running is not None:
            otherwise = "" if running.kind == "rekey" else ", or stop the application"
            raise Conflict(
                f"Application {application.name!r} has a running operation: {running.kind} {running.id}, since "
                f"{running.created_at:%Y-%m-%dT%H:%M:%SZ}. Wait until it has ended{otherwise}."
            )

    def add(
        self,
        kind: OperationKind,
        application: Application | None,
        execution: Execution | None,
        arguments: dict[str, Any],
        by: str,
        progress: str | None = None,
        project: str = DEFAULT_PROJECT,
    ) -> Operation:
        """``project``: project of an operation without application; operations on the whole store belong to
        ``default``."""
        row = Operation(
            id=new_id(),
            project=project if application is None else application.project,
            kind=kind,
            application=application.id if application else None,
            execution=execution.id if execution else None,
            state=advance(None, Event.BEGIN).value,
            arguments=arguments,
            progress=progress,
            created_at=now(),
            created_by=by,
        )
        self._session.add(row)
        self._session.flush()
        return row

    def latest(self, kind: OperationKind) -> Operation | None:
        """The latest operation, in any state."""
        query = select(Operation).where(Operation.kind == kind).order_by(Operation.id.desc()).limit(1)
        return self._session.scalars(query).first()

    def add_done(self, kind: OperationKind, application: Application, result: dict[str, Any], by: str) -> Operation:
        """Add an operation that is already complete, because no driver has to take part."""
        row = self.add(kind, application, None, result, by)
        row.state, row.result, row.finished_at = "succeeded", result, now()
        return row

    def give(self, operation: Operation, application: Application) -> None:
        """Assign the operation to the application that it created."""
        operation.application = application.id

    def ask_to_stop(self, execution: Execution, operation: Operation) -> None:
        """Request a stop; the driver completes the current epoch, and the end of the execution ends the operation."""
        execution.state = "stopping"
        execution.stop_requested_at = database_now(self._session)
        self.direct(execution, operation, "stop", {})

    def direct(self, execution: Execution, operation: Operation, kind: str, arguments: dict[str, Any]) -> Directive:
        """Send a directive with the next heartbeat; its completion ends the operation."""
        row = Directive(
            id=new_id(),
            execution=execution.id,
            operation=operation.id,
            kind=kind,
            arguments=arguments,
            created_at=now(),
        )
        self._session.add(row)
        self._session.flush()
        return row


def operation_answer(row: Operation, application: str | None) -> OperationAnswer:
    return OperationAnswer(
        id=row.id,
        kind=cast(OperationKind, row.kind),
        project=row.project,
        application=None if application is None else local_name(application),
        state=cast(OperationState, row.state),
        progress=row.progress,
        result=row.result,
        error=None if row.error is None else Problem.model_validate(row.error),
        created_at=row.created_at,
        finished_at=row.finished_at,
        cancel_requested_at=row.cancel_requested_at,
    )


def state_of(row: Operation) -> State:
    return State.CANCELLING if row.state == "running" and row.cancel_requested_at is not None else State(row.state)


def end(row: Operation, event: Event, result: dict[str, Any] | None = None, error: Problem | None = None) -> None:
    """Raises ``IllegalTransition``."""
    row.state = advance(state_of(row), event).value
    row.result = result
    row.error = None if error is None else error.model_dump(mode="json", exclude_none=True)
    row.progress = row.claim_holder = row.claim_until = None
    row.finished_at = now()
