from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import NotFound
from epochal.service.catalog.executions import GOING_ON
from epochal.service.catalog.models import Application, Artifact, Attempt, Execution, Version
from epochal.service.catalog.pages import paginate
from epochal.service.domain.pages import PageRequest, Part


class ExecutionRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, id: str) -> Execution:
        row = self._session.get(Execution, id)
        if row is None:
            raise NotFound(f"There is no execution {id!r}.")
        return row

    def of(self, application: Application, id: str) -> Execution:
        """Raises ``NotFound`` also for executions of others."""
        row = self._session.get(Execution, id)
        if row is None or row.application != application.id:
            raise NotFound(f"Application {application.name!r} has no execution {id!r}.")
        return row

    def page(self, application: Application, page: PageRequest) -> Part:
        """Newest first."""
        query = select(Execution).where(Execution.application == application.id)
        return paginate(self._session, query, page, [Execution.id], descending=True)

    def not_over(self) -> Sequence[Execution]:
        query = select(Execution).where(Execution.state.in_(GOING_ON)).order_by(Execution.id)
        return self._session.scalars(query).all()

    def attempts(self, execution: Execution, latest: int | None = None) -> Sequence[Attempt]:
        """Oldest first; all, or the ``latest`` so many."""
        query = select(Attempt).where(Attempt.execution == execution.id).order_by(Attempt.number.desc()).limit(latest)
        return self._session.scalars(query.execution_options(populate_existing=True)).all()[::-1]

    def attempt(self, execution: Execution, number: int) -> Attempt:
        row = self._session.get(Attempt, (execution.id, number))
        if row is None:
            raise NotFound(f"Execution {execution.id} has no attempt {number}.")
        return row

    def application(self, execution: Execution) -> Application:
        return self._session.get_one(Application, execution.application)

    def version(self, execution: Execution) -> Version:
        return self._session.get_one(Version, (execution.application, execution.version))

    def artifact(self, version: Version) -> Artifact:
        return self._session.get_one(Artifact, version.artifact)
