"""Read side of administration: projects, tokens, webhooks, the audit log."""

from __future__ import annotations

from epochal.service.catalog.audit import AuditFilter, AuditRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.projects import ProjectRepository
from epochal.service.catalog.tokens import TokenRepository, token_answer
from epochal.service.catalog.webhooks import WebhookRepository, webhook_answer
from epochal.service.domain.pages import PageRequest, cut
from epochal.service.domain.permissions import Principal
from epochal.wire.administration import AuditChange, AuditEntryAnswer, WebhookAnswer
from epochal.wire.bodies import Page
from epochal.wire.projects import ProjectAnswer
from epochal.wire.tokens import Role, TokenAnswer


class AdministrationQueries:
    def __init__(self, database: Database) -> None:
        self._database = database

    def audit(self, page: PageRequest, project: str, only: AuditFilter) -> Page[AuditEntryAnswer]:
        """Listed newest first. Like all of these, raises ``NotFound`` without such a project."""
        with self._database.reading() as session:
            ProjectRepository(session).check_there(project)
            part = AuditRepository(session).page(page, project, only)
            items = [
                AuditEntryAnswer(
                    id=row.id,
                    at=row.at,
                    application=row.application,
                    token=row.token,
                    token_id=row.token_id,
                    address=row.address,
                    request=row.request,
                    action=row.action,
                    target=row.target,
                    outcome=row.outcome,
                    changes=tuple(AuditChange.model_validate(item) for item in (row.changes or {}).get("items", ())),
                    changes_left_out=(row.changes or {}).get("left_out", 0),
                )
                for row in part.rows
            ]
            return Page(items=items, next_cursor=part.next_cursor)

    def tokens(self, page: PageRequest, project: str) -> Page[TokenAnswer]:
        with self._database.reading() as session:
            ProjectRepository(session).check_there(project)
            part = TokenRepository(session).page(page, project)
            return Page(items=[token_answer(row) for row in part.rows], next_cursor=part.next_cursor)

    def webhook(self, id: str, project: str) -> WebhookAnswer:
        """Raises ``NotFound``."""
        with self._database.reading() as session:
            repository = WebhookRepository(session)
            return webhook_answer(repository.get(id, project), repository.waiting([id]).get(id, 0))

    def webhooks(self, page: PageRequest, project: str) -> Page[WebhookAnswer]:
        """Listed oldest first."""
        with self._database.reading() as session:
            ProjectRepository(session).check_there(project)
            repository = WebhookRepository(session)
            part = repository.page(page, project)
            waiting = repository.waiting([row.id for row in part.rows])
            items = [webhook_answer(row, waiting.get(row.id, 0)) for row in part.rows]
            return Page(items=items, next_cursor=part.next_cursor)


class ProjectQueries:
    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str) -> ProjectAnswer:
        """Raises ``NotFound``."""
        with self._database.reading() as session:
            return ProjectRepository(session).answer(name)

    def page(self, page: PageRequest, caller: Principal) -> Page[ProjectAnswer]:
        """Projects in which the caller has a role, by name."""
        after = page.after(str)
        with self._database.reading() as session:
            repository = ProjectRepository(session)
            names = [
                name
                for name in repository.names()
                if caller.may(Role.VIEWER, name) and (after is None or name > after[0])
            ]
            part = cut(names[: page.limit + 1], page, lambda name: [name])
            return Page(items=[repository.answer(name) for name in part.rows], next_cursor=part.next_cursor)
