"""The catalog as supervision uses it: executions to run, and their outcomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal, cast

from sqlalchemy import func, select

from epochal.contracts.catalog import DriverStatus, Failure
from epochal.errors import Conflict
from epochal.service.catalog.branch_writer import BranchWriter
from epochal.service.catalog.database import Database
from epochal.service.catalog.events import announce_execution
from epochal.service.catalog.executions import ExecutionRepository, begin_attempt, end_attempt
from epochal.service.catalog.models import Attempt, Directive, Execution
from epochal.service.catalog.nodes import NodeRepository
from epochal.service.catalog.operation_completion import execution_over
from epochal.service.catalog.records import failure_of
from epochal.service.catalog.types import database_now
from epochal.service.catalog.versions import acceptance_of
from epochal.service.domain.executions import (
    ActiveExecution,
    AttemptOver,
    AttemptTicket,
    DriverName,
    LaunchPlan,
    Supervised,
    SupervisedAttempt,
    SupervisedExecution,
)
from epochal.service.domain.secrets import DriverToken
from epochal.wire.applications import AttemptState, ExecutionState
from epochal.wire.configuration import ApplicationConfiguration, RestartStrategy

_BESIDE_RESTARTS = 2
"""Attempts that a restart strategy examines besides restarts: the first one and the running one."""


class ExecutionLedger:
    """Implements :class:`epochal.service.domain.executions.Executions`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def supervised(self) -> Supervised:
        with self._database.reading() as session:
            # Read before the rows: a heartbeat that arrives meanwhile then seems to be in the future, and never too
            # old.
            at = database_now(session)
            repository = ExecutionRepository(session)
            found = [
                # Other settings may be of a later version, which must not stop supervision.
                (row, name, RestartStrategy.model_validate(configuration.get("restart", {})))
                for row, name, configuration in repository.not_over()
            ]
            most = max((restart.max_restarts for _, _, restart in found), default=0)
            attempts = repository.latest_attempts(most + _BESIDE_RESTARTS) if found else {}
            executions = [_supervised(row, name, restart, attempts.get(row.id, ())) for row, name, restart in found]
        return Supervised(at, tuple(executions))

    def active(self) -> Sequence[ActiveExecution]:
        with self._database.reading() as session:
            return [
                ActiveExecution(row.id, name, row.attempt) for row, name, _ in ExecutionRepository(session).not_over()
            ]

    def over(self, drivers: Collection[DriverName]) -> Mapping[DriverName, AttemptOver]:
        if not drivers:
            return {}
        with self._database.reading() as session:
            at = database_now(session)
            rows = ExecutionRepository(session).attempts_of({driver.execution for driver in drivers})
        found = {DriverName(row.execution, row.number): row for row in rows}
        return {
            driver: AttemptOver(
                cast(AttemptState, row.state), (at - (row.ended_at or row.started_at)).total_seconds(), row.process
            )
            for driver in drivers
            if (row := found.get(driver)) is not None and row.state != "running"
        }

    def plan(self, execution: str) -> LaunchPlan:
        with self._database.reading() as session:
            repository = ExecutionRepository(session)
            row = repository.get(execution)
            application, version = repository.application(row), repository.version(row)
            artifact = repository.artifact(version)
            return LaunchPlan(
                execution=row.id,
                application=application.name,
                version=version.number,
                branch=row.branch,
                artifact=artifact.sha256,
                filename=artifact.filename,
                parameters=version.parameters,
                configuration=ApplicationConfiguration.model_validate(version.configuration),
                shadow=application.shadow,
                available_now=row.available_now,
                drain=row.drain,
                by=version.created_by,
                message=version.message,
                acceptance=acceptance_of(version),
                nodes=tuple(NodeRepository(session).living()),
            )

    def new_attempt(self, execution: str) -> AttemptTicket:
        with self._database.writing() as session:
            repository = ExecutionRepository(session)
            row = repository.get(execution)
            attempt = begin_attempt(session, row, token_sha256=None)
            token = DriverToken.make(execution, attempt.number)
            attempt.token_sha256 = token.sha256
            announce_execution(session, repository.application(row).name, row)
        return AttemptTicket(execution, token.attempt, token.text)

    def launched(self, execution: str, attempt: int, process: str) -> None:
        with self._database.writing() as session:
            repository = ExecutionRepository(session)
            repository.attempt(repository.get(execution), attempt).process = process

    def waits(self, execution: str, attempt: int, cause: str) -> None:
        with self._database.writing() as session:
            repository = ExecutionRepository(session)
            row = repository.get(execution)
            found = repository.attempt(row, attempt)
            if row.attempt == attempt and found.state == "running" and found.begun_at is None:
                row.status = DriverStatus(phase="starting", detail=cause, epoch=None).model_dump(mode="json")
                announce_execution(session, repository.application(row).name, row)

    def attempt_ended(
        self, execution: str, attempt: int, state: Literal["ended", "lost", "failed"], failure: Failure | None
    ) -> None:
        with self._database.writing() as session:
            repository = ExecutionRepository(session)
            row = repository.get(execution)
            if end_attempt(session, row, attempt, state, failure):
                announce_execution(session, repository.application(row).name, row)

    def attempt_lost(self, execution: str, attempt: int, heard_at: datetime | None, failure: Failure | None) -> None:
        with self._database.writing() as session:
            repository = ExecutionRepository(session)
            row = repository.get(execution)
            BranchWriter(session, row.branch, row.id, attempt).lock()  # as each heartbeat does
            session.refresh(row)
            if row.heartbeat_at != heard_at:
                raise Conflict(f"Attempt {attempt} of execution {execution} sent a heartbeat in the meantime.")
            if end_attempt(session, row, attempt, "lost", failure):
                announce_execution(session, repository.application(row).name, row)

    def execution_ended(self, execution: str, state: Literal["stopped", "failed"], failure: Failure | None) -> None:
        with self._database.writing() as session:
            row = ExecutionRepository(session).get(execution)
            writer = BranchWriter(session, row.branch, row.id, row.attempt)
            writer.lock()
            session.refresh(row)
            writer.give_up()
            execution_over(session, row, state, failure)


def _supervised(
    row: Execution, application: str, restart: RestartStrategy, attempts: Sequence[Attempt]
) -> SupervisedExecution:
    return SupervisedExecution(
        id=row.id,
        application=application,
        state=cast(ExecutionState, row.state),
        restart=restart,
        heartbeat_at=row.heartbeat_at,
        stop_requested_at=row.stop_requested_at,
        detail=None if row.status is None else row.status.get("detail"),
        attempts=tuple(
            SupervisedAttempt(
                number=attempt.number,
                state=cast(AttemptState, attempt.state),
                process=attempt.process,
                begun=attempt.begun_at is not None,
                started_at=attempt.started_at,
                ended_at=attempt.ended_at,
                failure=failure_of(attempt.failure),
            )
            for attempt in attempts[-(restart.max_restarts + _BESIDE_RESTARTS) :]
        ),
    )


def newest_directives(database: Database, executions: Collection[str]) -> Mapping[str, str]:
    """The newest pending directive of each of these executions."""
    query = select(Directive.execution, func.max(Directive.id)).where(
        Directive.execution.in_(executions), Directive.completed_at.is_(None)
    )
    with database.reading() as session:
        return {row[0]: row[1] for row in session.execute(query.group_by(Directive.execution))}
