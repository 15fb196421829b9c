"""The supervisor's side of the catalog: what shall run, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from sqlalchemy.orm import Session

from epochal.contracts.catalog import Failure
from epochal.service.catalog.announcements import announce_execution
from epochal.service.catalog.branch_writer import BranchWriter
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import ExecutionRepository, begin_attempt, end_attempt
from epochal.service.catalog.models import Execution
from epochal.service.catalog.outcomes import execution_over
from epochal.service.catalog.records import failure_of
from epochal.service.catalog.supervision import SupervisorHeartbeat
from epochal.service.domain.artifacts import artifact_path
from epochal.service.domain.ports import (
    AttemptTicket,
    LaunchPlan,
    SupervisedAttempt,
    SupervisedBy,
    SupervisedExecution,
)
from epochal.service.domain.secrets import DriverToken
from epochal.service.domain.settings import Settings
from epochal.wire.configuration import ApplicationConfiguration
from epochal.wire.states import AttemptState, ExecutionState


class ExecutionLedger:
    """Implements :class:`epochal.service.domain.ports.Executions`."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._heartbeat = SupervisorHeartbeat(database, settings.data)

    def supervise(self, folder: str, timeout_seconds: float) -> SupervisedBy | None:
        return self._heartbeat.send(folder, timeout_seconds)

    def end_supervision(self) -> None:
        self._heartbeat.end()

    def supervised(self) -> Sequence[SupervisedExecution]:
        with self._database.reading() as session:
            return [_supervised(session, row) for row in ExecutionRepository(session).not_over()]

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
                artifact=artifact_path(self._settings.artifacts_directory, artifact.sha256, artifact.filename),
                artifact_sha256=artifact.sha256,
                parameters=version.parameters,
                configuration=ApplicationConfiguration.model_validate(version.configuration),
                shadow=application.shadow,
                available_now=row.available_now,
                drain=row.drain,
                by=version.created_by,
                message=version.message,
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

    def attempt_ended(
        self, execution: str, attempt: int, state: Literal["ended", "lost", "failed"], failure: Failure | None
    ) -> None:
        with self._database.writing() as session:
            repository = ExecutionRepository(session)
            row = repository.get(execution)
            if end_attempt(session, row, attempt, state, failure):
                announce_execution(session, repository.application(row).name, row)

    def execution_ended(self, execution: str, state: Literal["stopped", "failed"], failure: Failure | None) -> None:
        with self._database.writing() as session:
            row = ExecutionRepository(session).get(execution)
            writer = BranchWriter(session, row.branch, row.id, row.attempt)
            writer.lock()
            session.refresh(row)
            writer.give_up()
            execution_over(session, row, state, failure)


def _supervised(session: Session, row: Execution) -> SupervisedExecution:
    repository = ExecutionRepository(session)
    configuration = ApplicationConfiguration.model_validate(repository.version(row).configuration)
    return SupervisedExecution(
        id=row.id,
        application=repository.application(row).name,
        state=cast(ExecutionState, row.state),
        restart=configuration.restart,
        heartbeat_at=row.heartbeat_at,
        stop_requested_at=row.stop_requested_at,
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
            for attempt in repository.attempts(row, latest=configuration.restart.max_restarts + 2)
        ),
    )
