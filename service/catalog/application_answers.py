"""The representation of an application, built from its rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.executions import ENDED, latest_version
from epochal.service.catalog.models import Application, Attempt, Branch, Execution, Version
from epochal.service.catalog.records import failure_of, is_drained, key_of
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.types import now
from epochal.service.domain.failures import ended_by_outage, permanent
from epochal.service.domain.supervision import next_attempt_at
from epochal.wire.applications import ApplicationAnswer, ApplicationState, Head, ImportOrigin, Parent, Restarts
from epochal.wire.configuration import ApplicationConfiguration, RestartStrategy
from epochal.wire.projects import local_name, project_of

_DRAINED: Final = "finished: all sources have ended and the state is drained"


def application_answer(session: Session, row: Application) -> ApplicationAnswer:
    repository = ApplicationRepository(session)
    execution = repository.execution(row)
    version, head = _version(session, row, execution), _head(session, row)
    beginning = repository.beginning(row)
    return ApplicationAnswer(
        name=local_name(row.name),
        project=row.project,
        revision=repository.revision(row),
        state=cast(ApplicationState, execution.state if execution else "created"),
        detail=_detail(session, execution, head),
        branch=row.branch,
        version=version.number,
        artifact=version.artifact,
        parameters=version.parameters,
        configuration=ApplicationConfiguration.model_validate(version.configuration).model_dump(mode="json"),
        shadow=row.shadow,
        head=head,
        parent=_parent(session, beginning),
        imported_from=_imported_from(beginning),
        execution=row.execution,
        failure=failure_of(execution.failure) if execution else None,
        restarts=_restarts(session, execution, version),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _version(session: Session, row: Application, execution: Execution | None) -> Version:
    """The running version; without an active execution, the version that the next start would use."""
    if execution is None or execution.state in ENDED:
        return latest_version(session, row.id)
    return session.get_one(Version, (row.id, execution.version))


def _restarts(session: Session, execution: Execution | None, version: Version) -> Restarts | None:
    """Restarts of the active execution. A failed application shows its failure instead."""
    if execution is None or execution.state in ENDED:
        return None
    strategy, moment = RestartStrategy.model_validate(version.configuration.get("restart", {})), now()
    query = select(Attempt).where(
        Attempt.execution == execution.id,
        Attempt.ended_at > moment - timedelta(seconds=strategy.window_seconds),
        Attempt.failure.is_not(None),
    )
    failed = session.scalars(query.order_by(Attempt.number)).all()
    if not failed:
        return None
    last, failure = failed[-1], failure_of(failed[-1].failure)
    if failure is None or last.ended_at is None:
        return None
    counted = [attempt for attempt in failed if not ended_by_outage(failure_of(attempt.failure))]
    ended = [attempt.ended_at for attempt in counted if attempt.ended_at is not None]
    waits = execution.state == "starting" and last.number == execution.attempt and not permanent(failure)
    return Restarts(
        failures=len(counted),
        allowed=strategy.max_restarts,
        failure=failure,
        failed_at=last.ended_at,
        next_attempt_at=next_attempt_at(last.ended_at, ended, strategy, moment) if waits else None,
    )


def _detail(session: Session, execution: Execution | None, head: Head | None) -> str | None:
    """The driver's status; between two attempts, why the last one ended."""
    if execution is None:
        return _DRAINED if head is not None and head.drained else None
    attempt = session.get(Attempt, (execution.id, execution.attempt))
    if attempt is not None and attempt.state != "running" and execution.state in ("starting", "stopping"):
        failure = failure_of(attempt.failure)
        return None if failure is None else f"attempt {attempt.number} ended: {failure.message.splitlines()[0]}"
    if _ended_unrequested(execution):
        if head is not None and head.drained:
            return _DRAINED
        return (
            "finished: all available input is processed"
            if execution.available_now
            else "finished: all sources have ended"
        )
    if execution.status is None or execution.state in ("stopped", "failed"):
        return None
    return execution.status.get("detail")


def _ended_unrequested(execution: Execution) -> bool:
    """Return whether the execution ended without a stop request and without a failure."""
    return execution.state == "stopped" and execution.stop_requested_at is None and execution.failure is None


def _head(session: Session, row: Application) -> Head | None:
    epoch = SnapshotRepository(session).head(row)
    if epoch is None:
        return None
    return Head(branch=epoch.branch, epoch=epoch.epoch, committed_at=epoch.committed_at, drained=is_drained(epoch))


def _parent(session: Session, beginning: Branch | None) -> Parent | None:
    if beginning is None or beginning.kind != "fork":
        return None
    parent = key_of(beginning.parent_branch, beginning.parent_epoch)
    assert parent is not None  # a fork always has a parent
    source = session.get_one(Application, session.get_one(Branch, parent.branch).application)
    return Parent(application=local_name(source.name), branch=parent.branch, epoch=parent.epoch)


def _imported_from(beginning: Branch | None) -> ImportOrigin | None:
    said = (beginning.origin or {}) if beginning is not None and beginning.kind == "import" else {}
    if "control_plane" not in said:
        return None
    return ImportOrigin(
        project=project_of(said["application"]),
        application=local_name(said["application"]),
        epoch=said["epoch"],
        control_plane=said["control_plane"],
        exported_at=said["exported_at"],
        exported_by=said["by"],
        message=said.get("message"),
    )
