"""Background operations of a project."""

from __future__ import annotations

from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.operations import OperationRepository, operation_answer
from epochal.service.catalog.projects import ProjectRepository
from epochal.service.domain.pages import PageRequest
from epochal.wire.bodies import Page
from epochal.wire.operations import OperationAnswer
from epochal.wire.projects import DEFAULT_PROJECT


class OperationService:
    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, id: str, project: str = DEFAULT_PROJECT) -> OperationAnswer:
        """Raises ``NotFound``, also for operations of other projects."""
        with self._database.reading() as session:
            return operation_answer(*OperationRepository(session).get(id, project))

    def page(self, page: PageRequest, project: str, application: str | None) -> Page[OperationAnswer]:
        with self._database.reading() as session:
            ProjectRepository(session).check_there(project)
            row = None if application is None else ApplicationRepository(session).named(application)
            repository = OperationRepository(session)
            part = repository.page(page, project, row)
            items = [operation_answer(item, repository.application_name(item)) for item in part.rows]
            return Page(items=items, next_cursor=part.next_cursor)
