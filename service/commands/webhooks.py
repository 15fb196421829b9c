from __future__ import annotations

import secrets

import httpx

from epochal.errors import InvalidInput
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Webhook
from epochal.service.catalog.types import now
from epochal.service.catalog.webhooks import WebhookRepository
from epochal.service.domain.addresses import check_host
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.pages import PageRequest
from epochal.service.domain.settings import Settings
from epochal.wire.bodies import Page
from epochal.wire.webhooks import CreateWebhook, NewWebhookAnswer, WebhookAnswer, WebhookState


class WebhookService:
    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database

    def create(self, request: CreateWebhook, by: str) -> NewWebhookAnswer:
        """What happens from now on is delivered to it. Raises ``InvalidInput``, ``Conflict``: there are too many."""
        self._check(request.url)
        moment = now()
        row = Webhook(
            id=new_id(),
            url=request.url,
            kinds=sorted(set(request.kinds)),
            applications=None if request.applications is None else sorted(set(request.applications)),
            secret=request.secret or f"whsec_{secrets.token_urlsafe(32)}",
            failures=0,
            dropped=0,
            next_at=moment,
            created_at=moment,
            created_by=by,
        )
        with self._database.writing() as session:
            WebhookRepository(session).add(row)
            return NewWebhookAnswer(**_answer(row, 0).model_dump(), secret=row.secret)

    def get(self, id: str) -> WebhookAnswer:
        with self._database.reading() as session:
            repository = WebhookRepository(session)
            return _answer(repository.get(id), repository.waiting([id]).get(id, 0))

    def page(self, page: PageRequest) -> Page[WebhookAnswer]:
        with self._database.reading() as session:
            repository = WebhookRepository(session)
            part = repository.page(page)
            waiting = repository.waiting([row.id for row in part.rows])
            items = [_answer(row, waiting.get(row.id, 0)) for row in part.rows]
            return Page(items=items, next_cursor=part.next_cursor)

    def delete(self, id: str) -> None:
        """With what waits for it. Raises ``NotFound``."""
        with self._database.writing() as session:
            WebhookRepository(session).delete(id)

    def _check(self, text: str) -> None:
        try:
            url = httpx.URL(text)
        except httpx.InvalidURL as error:
            raise InvalidInput(f"The URL cannot be read: {error}.") from error
        if not url.host or url.userinfo:
            raise InvalidInput("The URL needs a host, and may have no user or password in it: deliveries are signed.")
        if not self._settings.webhooks_local:
            check_host(url.host)


def _answer(row: Webhook, waiting: int) -> WebhookAnswer:
    state: WebhookState = "disabled" if row.disabled_at else "failing" if row.failing_since else "active"
    return WebhookAnswer(
        id=row.id,
        url=row.url,
        kinds=row.kinds,
        applications=row.applications,
        state=state,
        waiting=waiting,
        dropped=row.dropped,
        failing_since=row.failing_since,
        last_error=row.last_error,
        delivered_at=row.delivered_at,
        disabled_at=row.disabled_at,
        created_at=row.created_at,
        created_by=row.created_by,
    )
