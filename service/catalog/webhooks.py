"""Webhooks, and the queue of their deliveries.

Events are queued in the transaction in which they happen, so that none is lost or spurious.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from epochal.errors import Conflict, NotFound
from epochal.service.catalog.models import Application, Branch, Webhook, WebhookDelivery
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.types import database_now, now
from epochal.service.domain.pages import PageRequest, Part
from epochal.wire.administration import WebhookAnswer, WebhookKind, WebhookState
from epochal.wire.projects import local_name, project_of

MOST = 100
"""Maximum number of webhooks of a project, since each of its commits reads them."""
_ACTIVE = (
    select(Webhook.id, Webhook.kinds, Webhook.applications, Application.name)
    .join(Application, Application.project == Webhook.project)
    .join(Branch, Branch.application == Application.id)
    .where(Webhook.disabled_at.is_(None), Branch.id == bindparam("branch"))
)


def enqueue(
    session: Session, kind: WebhookKind, branch: str, event: str, data: Callable[[], Mapping[str, Any]]
) -> None:
    """Queue an event for every webhook of the branch's project that selects it. ``event``: its id, which repeated
    deliveries share. ``data``: JSON."""
    takers = [row for row in session.connection().execute(_ACTIVE, {"branch": branch}) if kind in row.kinds]
    if not takers:
        return
    application, project = local_name(takers[0].name), project_of(takers[0].name)
    about = {"id": event, "kind": kind, "application": application, "project": project}
    content = {**about, "at": now().isoformat(), "data": data()}
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    for taker in takers:
        if taker.applications is None or application in taker.applications:
            session.add(WebhookDelivery(webhook=taker.id, event=event, kind=kind, body=body))


@dataclass(frozen=True)
class Delivery:
    """``body``: the posted content."""

    id: int
    event: str
    kind: str
    body: str


@dataclass(frozen=True)
class Claimed:
    """A webhook with the deliveries that are due, in order."""

    id: str
    url: str
    secret: str
    deliveries: tuple[Delivery, ...]
    until: datetime


@dataclass(frozen=True)
class WebhookTotals:
    """Totals over all webhooks: by state, queued and dropped deliveries."""

    states: Mapping[str, int]
    waiting: int
    dropped: int


class WebhookRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, webhook: Webhook) -> None:
        """Raises ``Conflict`` at the maximum number."""
        there = select(func.count()).select_from(Webhook).where(Webhook.project == webhook.project)
        if (self._session.scalar(there) or 0) >= MOST:
            raise Conflict(f"There are {MOST} webhooks already; delete one that is not needed.")
        webhook.next_at = database_now(self._session)
        self._session.add(webhook)
        self._session.flush()

    def get(self, id: str, project: str) -> Webhook:
        """Raises ``NotFound``, also for webhooks of other projects."""
        row = self._session.get(Webhook, id)
        if row is None or row.project != project:
            raise NotFound(f"There is no webhook {id!r}.")
        return row

    def page(self, page: PageRequest, project: str) -> Part:
        """Listed oldest first."""
        return paginate(self._session, select(Webhook).where(Webhook.project == project), page, [Webhook.id])

    def waiting(self, ids: Sequence[str]) -> Mapping[str, int]:
        query = select(WebhookDelivery.webhook, func.count()).where(WebhookDelivery.webhook.in_(ids))
        return {row[0]: row[1] for row in self._session.execute(query.group_by(WebhookDelivery.webhook))}

    def figures(self) -> WebhookTotals:
        """For metrics. :meth:`bound` limits the queue."""
        states = {"active": 0, "failing": 0, "disabled": 0}
        dropped = 0
        for disabled_at, failures, given_up in self._session.execute(
            select(Webhook.disabled_at, Webhook.failures, Webhook.dropped)
        ):
            states["disabled" if disabled_at is not None else "failing" if failures else "active"] += 1
            dropped += given_up
        waiting = self._session.scalar(select(func.count()).select_from(WebhookDelivery)) or 0
        return WebhookTotals(states, waiting, dropped)

    def delete(self, id: str, project: str) -> None:
        """Delete the webhook with its queue. Raises ``NotFound``."""
        self._session.delete(self.get(id, project))
        self._session.execute(delete(WebhookDelivery).where(WebhookDelivery.webhook == id))

    def due(self) -> Sequence[str]:
        """Webhooks with deliveries that are due."""
        waits = select(WebhookDelivery.id).where(WebhookDelivery.webhook == Webhook.id).exists()
        moment = database_now(self._session)
        query = select(Webhook.id).where(Webhook.disabled_at.is_(None), Webhook.next_at <= moment, waits)
        return self._session.scalars(query).all()

    def claim(self, id: str, seconds: float, most: int) -> Claimed | None:
        """Claim its deliveries for a limited time; ``None`` if another control plane holds them."""
        moment = database_now(self._session)
        until = moment + timedelta(seconds=seconds)
        taken = (
            update(Webhook)
            .where(Webhook.id == id, Webhook.disabled_at.is_(None), Webhook.next_at <= moment)
            .values(next_at=until)
            .returning(Webhook.url, Webhook.secret)
        )
        row = self._session.execute(taken).one_or_none()
        if row is None:
            return None
        query = select(WebhookDelivery).where(WebhookDelivery.webhook == id).order_by(WebhookDelivery.id).limit(most)
        deliveries = tuple(Delivery(item.id, item.event, item.kind, item.body) for item in self._session.scalars(query))
        return Claimed(id, row.url, row.secret, deliveries, until)

    def settle(self, claimed: Claimed, delivered: Sequence[int]) -> Webhook | None:
        """Remove completed deliveries. Returns the locked webhook, due immediately, to record the outcome. ``None`` if
        it was deleted, or another control plane has claimed it in the meantime."""
        self._session.execute(delete(WebhookDelivery).where(WebhookDelivery.id.in_(delivered)))
        row = self._session.get(Webhook, claimed.id, with_for_update=True)
        if row is None or row.next_at != claimed.until:
            return None
        row.next_at = database_now(self._session)
        if delivered:
            row.delivered_at, row.failures, row.failing_since, row.last_error = now(), 0, None, None
        return row

    def disable(self, webhook: Webhook, at: datetime) -> None:
        webhook.disabled_at = at
        webhook.dropped += self._remove(webhook.id, None)

    def bound(self, most: int) -> None:
        """Drop the oldest deliveries beyond ``most`` for each webhook, and those of deleted webhooks."""
        counted = select(WebhookDelivery.webhook, func.count()).group_by(WebhookDelivery.webhook)
        for id, waiting in self._session.execute(counted).all():
            row = self._session.get(Webhook, id, with_for_update=True)
            if row is None:
                self._remove(id, None)
            elif waiting > most:
                query = select(WebhookDelivery.id).where(WebhookDelivery.webhook == id)
                newest = self._session.scalars(query.order_by(WebhookDelivery.id.desc()).offset(most).limit(1)).one()
                row.dropped += self._remove(id, newest)

    def _remove(self, webhook: str, newest: int | None) -> int:
        """Remove all deliveries, or those up to ``newest``; returns their number."""
        before = self.waiting([webhook]).get(webhook, 0)
        statement = delete(WebhookDelivery).where(WebhookDelivery.webhook == webhook)
        if newest is not None:
            statement = statement.where(WebhookDelivery.id <= newest)
        self._session.execute(statement)
        return before - self.waiting([webhook]).get(webhook, 0)


def webhook_answer(row: Webhook, waiting: int) -> WebhookAnswer:
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
