from __future__ import annotations

from sqlalchemy import select
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

    def page(self, page: PageRequest) -> Part:
        """Newest first."""
        return paginate(self._session, select(AuditEntry), page, [AuditEntry.id], descending=True)
