from __future__ import annotations

from typing import cast

from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.executions import ExecutionRepository
from epochal.service.catalog.models import Execution
from epochal.service.catalog.records import failure_of
from epochal.service.domain.pages import PageRequest
from epochal.wire.applications import AttemptAnswer, AttemptState, ExecutionAnswer, ExecutionState, StatusAnswer
from epochal.wire.bodies import Page


class ExecutionService:
    """What the executions' endpoints answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, application: str, page: PageRequest) -> Page[ExecutionAnswer]:
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            part = ExecutionRepository(session).page(row, page)
            items = [_answer(session, application, item) for item in part.rows]
            return Page(items=items, next_cursor=part.next_cursor)

    def get(self, application: str, id: str) -> ExecutionAnswer:
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            return _answer(session, application, ExecutionRepository(session).of(row, id))

    def latest(self, application: str) -> ExecutionAnswer | None:
        """The execution whose state is the application's; ``None`` when it was never started. ``NotFound``."""
        with self._database.reading() as session:
            applications = ApplicationRepository(session)
            execution = applications.execution(applications.named(application))
            return None if execution is None else _answer(session, application, execution)


def _answer(session: Session, application: str, row: Execution) -> ExecutionAnswer:
    return ExecutionAnswer(
        id=row.id,
        application=application,
        version=row.version,
        state=cast(ExecutionState, row.state),
        attempt=row.attempt,
        available_now=row.available_now,
        drain=row.drain,
        status=None if row.status is None else StatusAnswer.model_validate(row.status),
        heartbeat_at=row.heartbeat_at,
        stop_requested_at=row.stop_requested_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        attempts=[
            AttemptAnswer(
                number=attempt.number,
                state=cast(AttemptState, attempt.state),
                started_at=attempt.started_at,
                ended_at=attempt.ended_at,
                failure=failure_of(attempt.failure),
                process=attempt.process,
            )
            for attempt in ExecutionRepository(session).attempts(row)
        ],
    )
