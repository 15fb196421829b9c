from __future__ import annotations

from epochal.service.catalog.audit import AuditRepository
from epochal.service.catalog.database import Database
from epochal.service.domain.pages import PageRequest
from epochal.wire.audit import AuditAnswer
from epochal.wire.bodies import Page


class AuditService:
    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, page: PageRequest) -> Page[AuditAnswer]:
        with self._database.reading() as session:
            part = AuditRepository(session).page(page)
            items = [
                AuditAnswer(at=row.at, token=row.token, action=row.action, target=row.target, outcome=row.outcome)
                for row in part.rows
            ]
            return Page(items=items, next_cursor=part.next_cursor)
