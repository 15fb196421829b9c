"""What has changed, recorded as events in the transaction that changes it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from epochal.service.catalog.events import record
from epochal.service.catalog.models import Epoch, Execution, Operation, Savepoint
from epochal.service.catalog.records import epoch_record
from epochal.service.catalog.types import now
from epochal.service.domain.ports import ControlEvent, EventKind
from epochal.wire.projects import local_name, project_of


def announce_epoch(session: Session, application: str, row: Epoch | Row[Any]) -> None:
    _announce(session, "epoch", application, epoch_record(row).model_dump(mode="json", exclude_none=True))


def announce_execution(session: Session, application: str, row: Execution) -> None:
    data: dict[str, object] = {
        "id": row.id,
        "state": row.state,
        "attempt": row.attempt,
        "version": row.version,
        "branch": row.branch,
        "failure": row.failure,
    }
    _announce(session, "execution", application, data)


def announce_operation(session: Session, application: str | None, row: Operation) -> None:
    data: dict[str, object] = {
        "id": row.id,
        "kind": row.kind,
        "state": row.state,
        "result": row.result,
        "error": row.error,
    }
    _announce(session, "operation", application, data)


def announce_savepoint(session: Session, application: str, row: Savepoint, *, deleted: bool = False) -> None:
    data: dict[str, object] = {"name": row.name, "branch": row.branch, "epoch": row.epoch, "deleted": deleted}
    _announce(session, "savepoint", application, data)


def _announce(session: Session, kind: EventKind, application: str | None, data: dict[str, object]) -> None:
    named: dict[str, object] = {"application": application}
    if application is not None:
        named = {"application": local_name(application), "project": project_of(application)}
    record(session, ControlEvent(kind=kind, application=application, data={**named, **data}, at=now()))
