"""Load of applications, and the inputs of autoscaling."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.measurements import DriverReport, Load, Moment
from epochal.service.catalog.executions import latest_version
from epochal.service.catalog.models import Application, Execution, Operation, Report, Version
from epochal.service.catalog.operations import EXCLUSIVE
from epochal.service.catalog.records import scaled_as
from epochal.service.domain.autoscaling import Situation
from epochal.service.domain.operator_scaling import OperatorWork
from epochal.wire.configuration import ApplicationConfiguration

ACTOR = "autoscaler"
"""Creator of the rescalings that autoscaling begins."""

HEARD_WITHIN = timedelta(seconds=30)
"""Reports older than this are not used."""

_REMEMBERED = 20
"""Maximum number of operations of an execution that are examined."""


class ScalingRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def scaled(self) -> Sequence[Application]:
        """Running applications with autoscaling, ordered by name."""
        query = (
            select(Application, Version.configuration)
            .join(Execution, Execution.id == Application.execution)
            .join(Version, (Version.application == Application.id) & (Version.number == Execution.version))
            .where(Application.deleted_at.is_(None), Execution.state == "running", Execution.ended_at.is_(None))
            .order_by(Application.name)
        )
        return [row for row, settings in self._session.execute(query) if settings.get("autoscaling") is not None]

    def situation(self, application: Application, now: datetime) -> Situation | None:
        """``None`` if the application does not run or has no autoscaling."""
        execution = self._session.get(Execution, application.execution) if application.execution else None
        if execution is None or execution.ended_at is not None:
            return None
        version = self._session.get_one(Version, (application.id, execution.version))
        configuration = ApplicationConfiguration.model_validate(version.configuration)
        if configuration.autoscaling is None:
            return None
        moment, reported_at = self.moment(execution)
        load = moment.load
        is_current = (
            load is not None
            and (load.version, load.parallelism) == (execution.version, configuration.parallelism)
            and reported_at is not None
            and now - reported_at <= HEARD_WITHIN
        )
        ended = self._ended(execution)
        return Situation(
            policy=configuration.autoscaling,
            parallelism=configuration.parallelism,
            samples=load.samples if load is not None and is_current else (),
            changed_at=max([execution.started_at, *(row.finished_at for row in ended if row.finished_at)]),
            failed=_failed(ended),
            obstacle=self._obstacle(application, execution, version),
            operators=_operators(version, load) if load is not None and is_current else {},
        )

    def moment(self, execution: Execution | None) -> tuple[Moment, datetime | None]:
        """The last report of the current attempt of a running execution, and its time."""
        if execution is None or execution.ended_at is not None:
            return Moment(), None
        row = self._session.get(Report, execution.application)
        if row is None or (row.execution, row.attempt) != (execution.id, execution.attempt):
            return Moment(), None
        return DriverReport.model_validate(row.latest).moment, row.reported_at

    def _obstacle(self, application: Application, execution: Execution, version: Version) -> str | None:
        if execution.state != "running":
            return f"it is {execution.state}"
        query = select(Operation).where(Operation.application == application.id, Operation.state == "running")
        operation = self._session.scalars(query.order_by(Operation.id).limit(1)).first()
        if operation is not None:
            return f"an operation is under way: {operation.kind} {operation.id}"
        newest = latest_version(self._session, application.id)
        return None if newest.number == version.number else f"version {newest.number} waits for the next start"

    def _ended(self, execution: Execution) -> Sequence[Operation]:
        """Completed operations of this execution that changed, or should have changed, what runs; newest first."""
        query = select(Operation).where(
            Operation.execution == execution.id, Operation.state != "running", Operation.kind.in_(EXCLUSIVE)
        )
        return self._session.scalars(query.order_by(Operation.id.desc()).limit(_REMEMBERED)).all()


def _operators(version: Version, load: Load) -> dict[str, OperatorWork]:
    """Recent work by the name under which the numbers of subtasks are configured."""
    nodes = () if version.graph is None else version.graph["nodes"]
    names = {node["name"]: scaled_as(node) for node in nodes}
    found: dict[str, OperatorWork] = {}
    for operator, measured in load.operators.items():
        if measured.subtasks:
            name = names.get(operator, operator)
            before = found.get(name, OperatorWork(measured.subtasks, 0.0))
            found[name] = OperatorWork(before.subtasks, before.busy_seconds + measured.busy_seconds)
    return found


def _failed(ended: Sequence[Operation]) -> int:
    """Number of consecutive failed rescalings by autoscaling, counted back from the newest operation."""
    count = 0
    for operation in ended:
        if operation.created_by != ACTOR or operation.state != "failed":
            break
        count += 1
    return count
