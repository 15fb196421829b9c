"""The life cycle of an application: operations that changed what runs, and drivers that replaced failed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, and_, false, or_, select, true, tuple_
from sqlalchemy.orm import Session, aliased

from epochal.service.catalog.models import Application, Attempt, Execution, Operation, Version
from epochal.service.catalog.operations import EXCLUSIVE
from epochal.service.domain.pages import PageRequest, Part, cut

_OPERATION, _RECOVERY = 1, 0
"""Order of items that began at the same time."""


@dataclass(frozen=True)
class Recovery:
    """``attempt`` replaced ``before``, which failed or was lost, in the same execution."""

    before: Attempt
    attempt: Attempt

    @property
    def began_at(self) -> datetime:
        return self.before.ended_at or self.attempt.started_at


LifecycleRow = Operation | Recovery


class LifecycleRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def page(self, application: Application, page: PageRequest) -> Part:
        """Rows, newest first, from two tables: at most one row more than the page is read from each."""
        after = page.after(datetime, int, str, int)
        operations = self._operations(application, after, page.limit + 1)
        recoveries = self._recoveries(application, after, page.limit + 1)
        rows: list[LifecycleRow] = [*operations, *recoveries]
        rows.sort(key=_place, reverse=True)
        return cut(rows[: page.limit + 1], page, _place)

    def versions(self, application: Application) -> Mapping[int, Version]:
        query = select(Version).where(Version.application == application.id)
        return {row.number: row for row in self._session.scalars(query)}

    def _operations(
        self, application: Application, after: tuple[datetime, int, str, int] | None, most: int
    ) -> Sequence[Operation]:
        earlier: ColumnElement[bool] = true()
        if after is not None:
            at, kind, id, _ = after
            same = and_(Operation.created_at == at, Operation.id < id) if kind == _OPERATION else false()
            earlier = or_(Operation.created_at < at, same)
        query = select(Operation).where(Operation.application == application.id, Operation.kind.in_(EXCLUSIVE), earlier)
        return self._session.scalars(query.order_by(Operation.created_at.desc(), Operation.id.desc()).limit(most)).all()

    def _recoveries(
        self, application: Application, after: tuple[datetime, int, str, int] | None, most: int
    ) -> Sequence[Recovery]:
        before = aliased(Attempt)
        earlier: ColumnElement[bool] = true()
        if after is not None:
            at, kind, execution, number = after
            same = true() if kind == _OPERATION else tuple_(Attempt.execution, Attempt.number) < (execution, number)
            earlier = or_(Attempt.started_at < at, and_(Attempt.started_at == at, same))
        query = (
            select(before, Attempt)
            .join(Execution, Execution.id == Attempt.execution)
            .join(before, and_(before.execution == Attempt.execution, before.number == Attempt.number - 1))
            .where(Execution.application == application.id, before.state.in_(("failed", "lost")), earlier)
            .order_by(Attempt.started_at.desc(), Attempt.execution.desc(), Attempt.number.desc())
        )
        return [Recovery(*row) for row in self._session.execute(query.limit(most)).all()]


def _place(row: LifecycleRow) -> tuple[datetime, int, str, int]:
    if isinstance(row, Operation):
        return row.created_at, _OPERATION, row.id, 0
    return row.attempt.started_at, _RECOVERY, row.attempt.execution, row.attempt.number
