"""Events of the control plane, made from rows."""

from __future__ import annotations

from epochal.service.catalog.models import Epoch, Execution, Operation, Savepoint
from epochal.service.catalog.records import epoch_record
from epochal.service.catalog.types import now
from epochal.service.domain.ports import ControlEvent, EventKind


def epoch_changed(application: str, row: Epoch) -> ControlEvent:
    return _event("epoch", application, epoch_record(row).model_dump(mode="json", exclude_none=True))


def execution_changed(application: str, row: Execution) -> ControlEvent:
    return _event(
        "execution",
        application,
        {
            "id": row.id,
            "state": row.state,
            "attempt": row.attempt,
            "version": row.version,
            "branch": row.branch,
            "failure": row.failure,
        },
    )


def operation_changed(application: str | None, row: Operation) -> ControlEvent:
    return _event(
        "operation",
        application,
        {"id": row.id, "kind": row.kind, "state": row.state, "result": row.result, "error": row.error},
    )


def savepoint_made(application: str, row: Savepoint) -> ControlEvent:
    return _savepoint(application, row, deleted=False)


def savepoint_deleted(application: str, row: Savepoint) -> ControlEvent:
    return _savepoint(application, row, deleted=True)


def _savepoint(application: str, row: Savepoint, deleted: bool) -> ControlEvent:
    data = {"name": row.name, "branch": row.branch, "epoch": row.epoch, "deleted": deleted}
    return _event("savepoint", application, data)


def _event(kind: EventKind, application: str | None, data: dict[str, object]) -> ControlEvent:
    return ControlEvent(kind=kind, application=application, data={"application": application, **data}, at=now())
