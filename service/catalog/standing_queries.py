"""Commands on the standing queries of an application, numbered in the order of their execution."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import QueryCommand
from epochal.engine.epoch import State
from epochal.service.catalog.models import Application, Epoch, Execution, Operation, QueryCommandRow
from epochal.service.catalog.types import now


class QueryCommandRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def next_number(self, application: Application, inherited: int) -> int:
        """Number of the next command on a locked application. ``inherited``: the last command that its snapshots
        include, which after a fork was the parent's."""
        query = select(func.max(QueryCommandRow.number)).where(QueryCommandRow.application == application.id)
        return max(self._session.scalar(query) or 0, inherited) + 1

    def under_way(self, execution: Execution) -> int | None:
        """The epoch that the execution's driver has opened and not decided, if any."""
        query = select(Epoch.epoch, Epoch.state).where(Epoch.branch == execution.branch).order_by(Epoch.epoch.desc())
        newest = self._session.execute(query.limit(1)).first()
        return newest.epoch if newest is not None and newest.state == State.STARTED else None

    def add(self, application: Application, command: QueryCommand, operation: Operation) -> None:
        self._session.add(
            QueryCommandRow(
                application=application.id,
                number=command.number,
                kind=command.kind,
                query=command.query,
                operation=operation.id,
                text=command.text,
                created_at=now(),
                created_by=command.by,
            )
        )
