"""Completion of operations by the reports of drivers. The functions run inside a write transaction of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import Failure, ManifestReference, OptimizeResult, TransactionOrder
from epochal.contracts.identity import EpochKey
from epochal.errors import Conflict, EpochalError, NameTaken
from epochal.service.catalog.events import (
    announce_decision,
    announce_execution,
    announce_operation,
    announce_savepoint,
)
from epochal.service.catalog.executions import ENDED, begin_execution
from epochal.service.catalog.lineage import committed_head
from epochal.service.catalog.models import (
    Application,
    Attempt,
    Branch,
    Directive,
    Epoch,
    Execution,
    Operation,
    Savepoint,
    Version,
)
from epochal.service.catalog.operations import OperationRepository, end
from epochal.service.catalog.records import json_of, key_of
from epochal.service.catalog.rollbacks import roll_back
from epochal.service.catalog.types import now
from epochal.service.catalog.webhooks import enqueue
from epochal.service.domain.operations import Event
from epochal.wire.problems import Problem, problem_of, problem_of_failure

RECONFIGURATIONS = ("upgrade", "rescale")
"""Operations that change the version; their argument ``version`` is its number."""

_ANSWERED_BY_DRIVER = ("savepoint", "transaction", "reconfigure", "query", "optimize")
"""Directives whose completion ends their operation. A stop ends with the execution."""


def driver_runs(session: Session, execution: Execution) -> None:
    """Complete operations that waited for the driver to run, which it reports with each heartbeat."""
    waiting = [
        operation
        for operation in _running(session, execution)
        if operation.kind == "start" or operation.arguments.get("successor")
    ]
    if not waiting:
        return
    application = session.get_one(Application, execution.application)
    result = {"execution": execution.id, "attempt": execution.attempt}
    for operation in waiting:
        succeed(session, application, operation, _of_start(operation, result))


def driver_replaced(session: Session, execution: Execution, version: str) -> None:
    """Begin a restart because the versions of the driver and of this control plane are too far apart."""
    if execution.state != "running" or _running(session, execution):
        return
    application = session.get_one(Application, execution.application)
    operations = OperationRepository(session)
    why = f"driver version {version} is not supported by this control plane"
    operation = operations.add("restart", application, execution, {"successor": False}, "epochal", f"stopping: {why}")
    operations.ask_to_stop(execution, operation)
    announce_operation(session, application.name, operation)
    announce_execution(session, application.name, execution)


def directive_done(
    session: Session,
    execution: Execution,
    directive: Directive,
    head: ManifestReference | None,
    failure: Failure | None,
    result: OptimizeResult | None = None,
) -> None:
    """Store the completion of a directive. A savepoint is created immediately; a stop ends with the execution."""
    application = session.get_one(Application, execution.application)
    directive.completed_at = now()
    directive.failure = json_of(failure)
    directive.head_branch = head.branch if head else None
    directive.head_epoch = head.epoch if head else None
    operation = session.get(Operation, directive.operation) if directive.operation else None
    if operation is None or operation.state != "running" or directive.kind not in _ANSWERED_BY_DRIVER:
        return
    if failure is not None:
        fail(session, application, operation, problem_of_failure(failure))
    elif directive.kind == "transaction":
        announce_decision(session, application.name, TransactionOrder.model_validate(directive.arguments))
        succeed(session, application, operation, dict(operation.arguments))
    elif directive.kind == "optimize":
        found = {} if result is None else result.model_dump(mode="json")
        succeed(session, application, operation, {**operation.arguments, **found})
    elif directive.kind in ("reconfigure", "query"):
        succeed(session, application, operation, {**operation.arguments, "epoch": head.epoch if head else None})
    else:
        _savepoint(session, application, operation, head.key if head else None)


def directive_progressed(session: Session, application: str, directive: Directive, progress: str) -> None:
    """Show the progress of a directive in its operation, while both are under way."""
    operation = session.get(Operation, directive.operation) if directive.operation else None
    if directive.completed_at is None and operation is not None and operation.state == "running":
        operation.progress = progress
        announce_operation(session, application, operation)


def reconfigurations_lost(session: Session, execution: Execution, attempt: int) -> None:
    """R1: fail reconfigurations that a driver's end interrupted; its successor does not retry them.

    If the version was decided, it is the execution's version, and the successor reports it.
    """
    pending = select(Directive).where(
        Directive.execution == execution.id, Directive.completed_at.is_(None), Directive.kind == "reconfigure"
    )
    for directive in session.scalars(pending):
        lost = select(Attempt.number).where(
            Attempt.execution == execution.id,
            Attempt.number < attempt,
            Attempt.begun_at.is_not(None),
            Attempt.ended_at > directive.created_at,
        )
        if directive.arguments["version"] == execution.version or session.scalars(lost).first() is None:
            continue
        message = (
            f"The driver ended before version {directive.arguments['version']} had run an epoch; version "
            f"{execution.version} continues. See the logs of the attempt that ended, and try again."
        )
        directive_done(session, execution, directive, None, Failure(type="driver-lost", message=message))


def savepoint_of_head(session: Session, application: Application, operation: Operation) -> None:
    """Create the savepoint of the last committed epoch, for an application that does not run."""
    head = committed_head(session, session.get_one(Branch, application.branch))
    _savepoint(session, application, operation, head)


def execution_over(
    session: Session, execution: Execution, state: Literal["stopped", "failed"], failure: Failure | None
) -> None:
    """End the execution and complete the operations that waited for it. Idempotent."""
    if execution.state in ENDED:
        return
    application = session.get_one(Application, execution.application)
    execution.state = state
    execution.failure = json_of(failure)
    execution.ended_at = now()
    application.updated_at = now()
    session.flush()
    if state == "failed":
        what = {"execution": execution.id, "attempt": execution.attempt, "failure": json_of(failure)}
        enqueue(session, "application.failed", execution.branch, f"{execution.id}/failed", lambda: what)
    announce_execution(session, application.name, execution)
    for operation in _running(session, execution):
        _operation_over(session, application, execution, operation, failure)
    for directive in session.scalars(
        select(Directive).where(Directive.execution == execution.id, Directive.completed_at.is_(None))
    ):
        directive.completed_at = now()


def _savepoint(session: Session, application: Application, operation: Operation, key: EpochKey | None) -> None:
    try:
        savepoint = make_savepoint(session, application, operation, key)
    except EpochalError as error:
        fail(session, application, operation, problem_of(error))
    else:
        announce_savepoint(session, application.name, savepoint)
        succeed(session, application, operation, savepoint_result(session, savepoint))


def make_savepoint(session: Session, application: Application, operation: Operation, key: EpochKey | None) -> Savepoint:
    """Create the savepoint that ``operation`` requests. Raises ``Conflict``, ``NameTaken``."""
    name = operation.arguments["savepoint"]
    row = None if key is None else session.get(Epoch, (key.branch, key.epoch))
    if row is None or row.state != "committed":
        raise Conflict(f"Savepoint {name!r} cannot be created: {application.name!r} has not committed an epoch yet.")
    if session.get(Savepoint, (application.id, name)) is not None:
        raise NameTaken(f"Application {application.name!r} already has a savepoint {name!r}; choose another name.")
    savepoint = Savepoint(
        application=application.id,
        name=name,
        branch=row.branch,
        epoch=row.epoch,
        message=operation.arguments.get("message"),
        created_at=now(),
        created_by=operation.created_by,
    )
    session.add(savepoint)
    return savepoint


def savepoint_result(session: Session, savepoint: Savepoint) -> dict[str, object]:
    row = session.get_one(Epoch, (savepoint.branch, savepoint.epoch))
    return {
        "name": savepoint.name,
        "branch": savepoint.branch,
        "epoch": savepoint.epoch,
        "manifest": {"path": row.manifest_path, "sha256": row.manifest_sha256},
        "message": savepoint.message,
        "created_at": savepoint.created_at.isoformat().replace("+00:00", "Z"),
        "created_by": savepoint.created_by,
    }


def _operation_over(
    session: Session, application: Application, execution: Execution, operation: Operation, failure: Failure | None
) -> None:
    match operation.kind:
        case "stop" if execution.state == "stopped":
            _stopped(session, application, execution, operation)
        case "restart" | "upgrade" | "rescale" if _needs_successor(operation):
            successor = begin_execution(
                session, application, available_now=execution.available_now, drain=execution.drain
            )
            operation.execution = successor.id
            operation.arguments = {**operation.arguments, "successor": True}
            operation.progress = "starting"
            announce_execution(session, application.name, successor)
        case "rollback" if operation.arguments.get("successor") is False:
            _rolled_back(session, application, execution, operation)
        case "upgrade" | "rescale" if operation.arguments["version"] == execution.version:
            # The version was decided; the driver ended before it could report it.
            succeed(session, application, operation, dict(operation.arguments))
        case "start" | "restart" | "rollback" if failure is None and _ended_before_heartbeat(session, execution):
            result = {"execution": execution.id, "attempt": execution.attempt}
            succeed(session, application, operation, _of_start(operation, result))
        case _ if failure is not None:
            fail(session, application, operation, problem_of_failure(failure))
        case _:
            error = Conflict(f"Application {application.name!r} stopped before the {operation.kind} was done.")
            fail(session, application, operation, problem_of(error))


def _needs_successor(operation: Operation) -> bool:
    """Return whether the operation restarts the application and the previous execution is over."""
    begun = operation.arguments.get("successor")
    return not begun and (operation.kind == "restart" or begun is not None)


def _rolled_back(session: Session, application: Application, before: Execution, operation: Operation) -> None:
    """Move the stopped application to its new branch, and begin its next execution there."""
    try:
        with session.begin_nested():
            moved = roll_back(session, application, operation)
    except EpochalError as error:
        fail(session, application, operation, problem_of(error))
        return
    successor = begin_execution(session, application, available_now=before.available_now, drain=before.drain)
    operation.execution = successor.id
    operation.arguments = {**operation.arguments, "successor": True, "moved": moved}
    operation.progress = "starting"
    announce_execution(session, application.name, successor)
    announce_operation(session, application.name, operation)


def _of_start(operation: Operation, result: dict[str, object]) -> dict[str, object]:
    """Result of a start, restart or rollback, once the driver runs."""
    return {**operation.arguments.get("moved", {}), **result}


def _ended_before_heartbeat(session: Session, execution: Execution) -> bool:
    """Return whether the driver ended (its sources were exhausted) before its first heartbeat."""
    attempt = session.get(Attempt, (execution.id, execution.attempt))
    return attempt is not None and attempt.state == "ended"


def _stopped(session: Session, application: Application, execution: Execution, operation: Operation) -> None:
    head = _stop_answer(session, operation) or committed_head(session, session.get_one(Branch, execution.branch))
    result: dict[str, object] = {
        "branch": head.branch if head else execution.branch,
        "epoch": head.epoch if head else None,
        "savepoint": None,
    }
    if operation.arguments.get("savepoint") is not None:
        try:
            savepoint = make_savepoint(session, application, operation, head)
        except EpochalError as error:
            fail(session, application, operation, problem_of(error))
            return
        result["savepoint"] = savepoint.name
        announce_savepoint(session, application.name, savepoint)
    succeed(session, application, operation, result)


def _stop_answer(session: Session, operation: Operation) -> EpochKey | None:
    directive = session.scalars(select(Directive).where(Directive.operation == operation.id)).first()
    return None if directive is None else key_of(directive.head_branch, directive.head_epoch)


def _running(session: Session, execution: Execution) -> Sequence[Operation]:
    query = select(Operation).where(Operation.execution == execution.id, Operation.state == "running")
    return session.scalars(query.order_by(Operation.id)).all()


def succeed(session: Session, application: Application, operation: Operation, result: dict[str, object]) -> None:
    end(operation, Event.SUCCEED, result=result)
    announce_operation(session, application.name, operation)


def fail(session: Session, application: Application, operation: Operation, problem: Problem) -> None:
    if operation.kind in RECONFIGURATIONS:
        version = session.get_one(Version, (application.id, operation.arguments["version"]))
        version.failure = {"type": problem.type, "message": problem.detail}
    end(operation, Event.FAIL, error=problem)
    announce_operation(session, application.name, operation)
