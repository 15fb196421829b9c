from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from epochal.service.catalog.models import AuditEntry
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.types import now
from epochal.service.domain.pages import PageRequest, Part

_LONGEST_TARGET = 500


class AuditRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, token: str | None, action: str, target: str, outcome: int, request: str) -> None:
        self._session.add(
            AuditEntry(
                at=now(),
                token=token,
                action=action,
                target=target[:_LONGEST_TARGET].replace("\0", ""),
                outcome=outcome,
                request=request,
            )
        )

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

    def page(self, page: PageRequest) -> Part:
        """Newest first."""
        return paginate(self._session, select(AuditEntry), page, [AuditEntry.id], descending=True)
