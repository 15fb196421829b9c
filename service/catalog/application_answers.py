"""The representations of applications, built from their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.service.catalog.application_heads import committed_heads
from epochal.service.catalog.applications import beginnings_of, revision_of
from epochal.service.catalog.executions import ENDED, latest_versions
from epochal.service.catalog.models import Application, Attempt, Branch, Epoch, Execution, Version
from epochal.service.catalog.records import failure_of, is_drained, key_of
from epochal.service.catalog.types import now
from epochal.service.domain.failures import ended_by_outage, permanent
from epochal.service.domain.supervision import next_attempt_at
from epochal.wire.applications import ApplicationAnswer, ApplicationState, Head, ImportOrigin, Parent, Restarts
from epochal.wire.configuration import ApplicationConfiguration, RestartStrategy
from epochal.wire.projects import local_name, project_of

_DRAINED: Final = "finished: all sources have ended and the state is drained"


def application_answer(session: Session, row: Application) -> ApplicationAnswer:
    (answer,) = application_answers(session, [row])
    return answer


def application_answers(session: Session, rows: Sequence[Application]) -> list[ApplicationAnswer]:
    """Answers in the order of ``rows``. The number of statements does not depend on the number of rows."""
    related = _Related.read(session, rows)
    return [_answer(row, related) for row in rows]


@dataclass(frozen=True)
class _Related:
    """Rows that belong to applications. Keys are ids of applications, unless stated otherwise."""

    executions: Mapping[str, Execution]
    latest: Mapping[str, Version]
    """The latest versions that a start would use."""
    running: Mapping[str, Version]
    """Versions of the latest executions."""
    attempts: Mapping[str, Attempt]
    """The latest attempts, by execution."""
    failed: Mapping[str, Sequence[Attempt]]
    """Failed attempts within the longest window of a restart strategy, by execution, in the order of their numbers."""
    heads: Mapping[str, Epoch]
    beginnings: Mapping[str, Branch]
    """Branches on which applications were forked or imported."""
    names: Mapping[str, str]
    """Names of the applications that the beginnings were forked from, by branch."""

    @classmethod
    def read(cls, session: Session, rows: Sequence[Application]) -> _Related:
        ids = [row.id for row in rows]
        executions = [row.execution for row in rows if row.execution is not None]
        own = select(Execution).where(Execution.id.in_(executions))
        running = select(Version).join(
            Execution, (Execution.application == Version.application) & (Execution.version == Version.number)
        )
        latest = select(Attempt).join(
            Execution, (Execution.id == Attempt.execution) & (Execution.attempt == Attempt.number)
        )
        versions = {row.application: row for row in session.scalars(running.where(Execution.id.in_(executions)))}
        beginnings = beginnings_of(session, ids)
        return cls(
            executions={row.application: row for row in session.scalars(own)},
            latest=latest_versions(session, ids),
            running=versions,
            attempts={row.execution: row for row in session.scalars(latest.where(Execution.id.in_(executions)))},
            failed=_failed(session, executions, versions.values()),
            heads=committed_heads(session, ids),
            beginnings=beginnings,
            names=_names(session, [row.parent_branch for row in beginnings.values() if row.parent_branch is not None]),
        )


def _failed(
    session: Session, executions: Sequence[str], versions: Iterable[Version]
) -> Mapping[str, Sequence[Attempt]]:
    longest = max((_strategy(version).window_seconds for version in versions), default=0)
    query = select(Attempt).where(
        Attempt.execution.in_(executions),
        Attempt.ended_at > now() - timedelta(seconds=longest),
        Attempt.failure.is_not(None),
    )
    found: dict[str, list[Attempt]] = {}
    for attempt in session.scalars(query.order_by(Attempt.number)):
        found.setdefault(attempt.execution, []).append(attempt)
    return found


def _names(session: Session, branches: Sequence[str]) -> Mapping[str, str]:
    query = select(Branch.id, Application.name).join(Application, Application.id == Branch.application)
    return {row[0]: row[1] for row in session.execute(query.where(Branch.id.in_(branches)))}


def _answer(row: Application, related: _Related) -> ApplicationAnswer:
    execution, latest = related.executions.get(row.id), related.latest[row.id]
    # Without an active execution: the version that the next start would use.
    version = latest if execution is None or execution.state in ENDED else related.running[row.id]
    head, beginning = _head(related.heads.get(row.id)), related.beginnings.get(row.id)
    attempt = None if execution is None else related.attempts.get(execution.id)
    failed = () if execution is None else related.failed.get(execution.id, ())
    return ApplicationAnswer(
        name=local_name(row.name),
        project=row.project,
        revision="/".join(revision_of(row, execution, latest)),
        state=cast(ApplicationState, execution.state if execution else "created"),
        detail=_detail(execution, attempt, head),
        branch=row.branch,
        version=version.number,
        artifact=version.artifact,
        parameters=version.parameters,
        configuration=ApplicationConfiguration.model_validate(version.configuration).model_dump(mode="json"),
        shadow=row.shadow,
        head=head,
        parent=_parent(beginning, related.names),
        imported_from=_imported_from(beginning),
        execution=row.execution,
        failure=failure_of(execution.failure) if execution else None,
        restarts=_restarts(execution, failed, _strategy(version)),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _strategy(version: Version) -> RestartStrategy:
    return RestartStrategy.model_validate(version.configuration.get("restart", {}))


def _restarts(execution: Execution | None, failed: Sequence[Attempt], strategy: RestartStrategy) -> Restarts | None:
    """Restarts of the active execution. A failed application shows its failure instead."""
    if execution is None or execution.state in ENDED:
        return None
    moment = now()
    since = moment - timedelta(seconds=strategy.window_seconds)
    failed = [attempt for attempt in failed if attempt.ended_at is not None and attempt.ended_at > since]
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


def _detail(execution: Execution | None, attempt: Attempt | None, head: Head | None) -> str | None:
    """The driver's status; between two attempts, why the last one ended."""
    if execution is None:
        return _DRAINED if head is not None and head.drained else None
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


def _head(epoch: Epoch | None) -> Head | None:
    if epoch is None:
        return None
    return Head(branch=epoch.branch, epoch=epoch.epoch, committed_at=epoch.committed_at, drained=is_drained(epoch))


def _parent(beginning: Branch | None, names: Mapping[str, str]) -> Parent | None:
    if beginning is None or beginning.kind != "fork":
        return None
    parent = key_of(beginning.parent_branch, beginning.parent_epoch)
    assert parent is not None  # a fork always has a parent
    return Parent(application=local_name(names[parent.branch]), branch=parent.branch, epoch=parent.epoch)


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
