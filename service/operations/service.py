from __future__ import annotations

from typing import cast

from epochal.service.applications.repository import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Operation
from epochal.service.operations.repository import OperationRepository
from epochal.service.operations.schemas import OperationAnswer, OperationKind, OperationState
from epochal.service.pagination import PageRequest
from epochal.service.problems import Problem
from epochal.service.schema import Page


class OperationService:
    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, id: str) -> OperationAnswer:
        with self._database.reading() as session:
            return operation_answer(*OperationRepository(session).get(id))

    def page(self, page: PageRequest, application: str | None) -> Page[OperationAnswer]:
        with self._database.reading() as session:
            row = None if application is None else ApplicationRepository(session).named(application)
            repository = OperationRepository(session)
            part = repository.page(page, row)
            items = [operation_answer(item, repository.application_name(item)) for item in part.rows]
            return Page(items=items, next_cursor=part.next_cursor)


def operation_answer(row: Operation, application: str | None) -> OperationAnswer:
    return OperationAnswer(
        id=row.id,
        kind=cast(OperationKind, row.kind),
        application=application,
        state=cast(OperationState, row.state),
        progress=row.progress,
        result=row.result,
        error=None if row.error is None else Problem.model_validate(row.error),
        created_at=row.created_at,
        finished_at=row.finished_at,
    )
