from __future__ import annotations

import secrets

import httpx

from epochal.errors import InvalidInput
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Webhook
from epochal.service.catalog.projects import ProjectRepository
from epochal.service.catalog.types import now
from epochal.service.catalog.webhooks import WebhookRepository, webhook_answer
from epochal.service.domain.addresses import check_host
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.settings import Settings
from epochal.wire.administration import CreateWebhook, NewWebhookAnswer


class WebhookService:
    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database

    def create(self, request: CreateWebhook, project: str, by: str) -> NewWebhookAnswer:
        """What happens in the project from now on is delivered to it. Raises ``InvalidInput``, ``NotFound``, and
        ``Conflict`` when there are too many."""
        self._check(request.url)
        row = Webhook(
            id=new_id(),
            project=project,
            url=request.url,
            kinds=sorted(set(request.kinds)),
            applications=None if request.applications is None else sorted(set(request.applications)),
            secret=request.secret or f"whsec_{secrets.token_urlsafe(32)}",
            failures=0,
            dropped=0,
            created_at=now(),
            created_by=by,
        )
        with self._database.writing() as session:
            WebhookRepository(session).add(row)
            ProjectRepository(session).hold(project)
            return NewWebhookAnswer(**webhook_answer(row, 0).model_dump(), secret=row.secret)

    def delete(self, id: str, project: str) -> None:
        """With what waits for it. Raises ``NotFound``."""
        with self._database.writing() as session:
            WebhookRepository(session).delete(id, project)

    def _check(self, text: str) -> None:
        try:
            url = httpx.URL(text)
        except httpx.InvalidURL as error:
            raise InvalidInput(f"The URL cannot be read: {error}.") from error
        if not url.host or url.userinfo:
            raise InvalidInput("The URL needs a host, and may have no user or password in it: deliveries are signed.")
        if not self._settings.webhooks_local:
            check_host(url.host)
