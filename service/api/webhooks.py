from __future__ import annotations

from fastapi import APIRouter, Request, status

from epochal.service.api.access import requires
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.idempotency import STORED_ANSWER
from epochal.service.api.paging import Paging
from epochal.service.api.project_paths import InProject
from epochal.wire.administration import CreateWebhook, NewWebhookAnswer, WebhookAnswer
from epochal.wire.bodies import Page
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


@router.post("", status_code=status.HTTP_201_CREATED)
@requires(Role.ADMIN)
def create_webhook(
    body: CreateWebhook, request: Request, control: Control, caller: Caller, project: InProject
) -> NewWebhookAnswer:
    """Post what happens in the project to a URL, from now on: each event at least once, those of a webhook in order.
    Repeated until the receiver answers 2xx, with growing pauses; redirects are not followed. Headers:
    `Epochal-Event` (the kind),
    `Epochal-Event-Id` (the same when it is delivered again), `Epochal-Signature: t=..,v1=..`, where v1 is the
    HMAC-SHA256 of `t`, a dot and the body with the webhook's secret. The secret is in this answer, and never again."""
    answer = control.webhooks.create(body, project, caller.name)
    setattr(request.state, STORED_ANSWER, answer.model_copy(update={"secret": None}).model_dump_json().encode())
    return answer


@router.get("")
@requires(Role.ADMIN)
def list_webhooks(page: Paging, control: Control, project: InProject) -> Page[WebhookAnswer]:
    """Oldest first, without their secrets."""
    return control.administration.webhooks(page, project)


@router.get("/{id}")
@requires(Role.ADMIN)
def get_webhook(id: str, control: Control, project: InProject) -> WebhookAnswer:
    return control.administration.webhook(id, project)


@router.delete("/{id}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.ADMIN)
def delete_webhook(id: str, control: Control, project: InProject) -> None:
    """With what waits to be delivered to it."""
    control.webhooks.delete(id, project)
