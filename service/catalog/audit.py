from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from epochal.service.catalog.audited_calls import AuditedCall
from epochal.service.catalog.models import AuditEntry
from epochal.service.catalog.pages import paginate
from epochal.service.domain.pages import PageRequest, Part


class AuditRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def settle(self, call: AuditedCall, outcome: int) -> None:
        """The call was answered with ``outcome``. Its entry is made here when the call has changed nothing: it was
        refused, or there was nothing to do."""
        if call.details is None:
            return
        if call.landed is None:
            self._session.add(call.details.entry(outcome))
        elif outcome != call.details.expected:
            self._session.execute(update(AuditEntry).where(AuditEntry.id == call.landed).values(outcome=outcome))

    def has_expired(self, before: datetime) -> bool:
        oldest = self._session.scalar(select(AuditEntry.at).order_by(AuditEntry.id).limit(1))
        return oldest is not None and oldest < before

    def expire(self, before: datetime, most: int) -> int:
        """Remove what is older, at most so many; how many. In a writing transaction."""
        oldest = self._session.execute(select(AuditEntry.id, AuditEntry.at).order_by(AuditEntry.id).limit(most)).all()
        expired = [id for id, at in oldest if at < before]
        if expired:
            self._session.execute(delete(AuditEntry).where(AuditEntry.id.in_(expired)))
        return len(expired)

    def page(self, page: PageRequest, project: str) -> Part:
        """Newest first."""
        return paginate(
            self._session,
            select(AuditEntry).where(AuditEntry.project == project),
            page,
            [AuditEntry.id],
            descending=True,
        )
