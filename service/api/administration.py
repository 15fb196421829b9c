from __future__ import annotations

from fastapi import APIRouter, Request, status

from epochal.errors import Conflict, NameTaken
from epochal.service.api.access import for_members, requires
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.idempotency import STORED_ANSWER
from epochal.service.api.openapi import answers
from epochal.service.api.parameters import Paging
from epochal.service.api.project_paths import InProject
from epochal.wire.administration import AuditEntryAnswer, CreateWebhook, NewWebhookAnswer, WebhookAnswer
from epochal.wire.bodies import Page
from epochal.wire.projects import ChangeProject, CreateProject, ProjectAnswer, ProjectName
from epochal.wire.tokens import CreateToken, NewTokenAnswer, Role, RotatedTokenAnswer, RotateToken, TokenAnswer

project_router = APIRouter(prefix="/v1/projects", tags=["projects"])
token_router = APIRouter(prefix="/v1/tokens", tags=["tokens"])
webhook_router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])
audit_router = APIRouter(prefix="/v1/audit", tags=["audit"])


@project_router.post("", status_code=status.HTTP_201_CREATED)
@requires(Role.ADMIN)
@answers(NameTaken)
def create_project(request: CreateProject, control: Control, caller: Caller) -> ProjectAnswer:
    """By an admin of `default`, who is one of the installation, and of each project. The name of a project that was
    deleted is not given again: its history is still there."""
    return control.projects.create(request, caller.name)


@project_router.get("")
@for_members
def list_projects(page: Paging, control: Control, caller: Caller) -> Page[ProjectAnswer]:
    """Those in which the caller has a role, by name."""
    return control.known_projects.page(page, caller)


@project_router.get("/{project}")
@requires(Role.VIEWER)
def get_project(project: ProjectName, control: Control) -> ProjectAnswer:
    """Its quotas, and what it has of what they bound. The role is that in the project."""
    return control.known_projects.get(project)


@project_router.put("/{project}")
@requires(Role.ADMIN)
def change_project(project: ProjectName, request: ChangeProject, control: Control, caller: Caller) -> ProjectAnswer:
    """Other quotas, by an admin of `default`. What is there already stays, whatever they allow."""
    return control.projects.change(project, request, caller)


@project_router.delete("/{project}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.ADMIN)
@answers(Conflict)
def delete_project(project: ProjectName, control: Control, caller: Caller) -> None:
    """By an admin of `default`, when it has no applications. Its tokens, webhooks, uploads and artifacts go with it."""
    control.projects.delete(project, caller)


@token_router.post("", status_code=status.HTTP_201_CREATED)
@requires(Role.ADMIN)
@answers(NameTaken)
def create_token(
    body: CreateToken, request: Request, control: Control, caller: Caller, project: InProject
) -> NewTokenAnswer:
    """For the project, and no other one. The token is in this answer, and never again."""
    answer = control.tokens.create(body, project, caller.name)
    setattr(request.state, STORED_ANSWER, answer.model_copy(update={"token": None}).model_dump_json().encode())
    return answer


@token_router.post("/{id}/rotate", status_code=status.HTTP_201_CREATED)
@requires(Role.ADMIN)
@answers(NameTaken)
def rotate_token(
    id: str, body: RotateToken, request: Request, control: Control, caller: Caller, project: InProject
) -> RotatedTokenAnswer:
    """Replace a token by a new one of the same name and scope; the old one is revoked. The new one is in this answer,
    and never again. The token in the control plane's admin token file is replaced there, too."""
    answer = control.tokens.rotate(id, body, project, caller.name)
    setattr(request.state, STORED_ANSWER, answer.model_copy(update={"token": None}).model_dump_json().encode())
    return answer


@token_router.get("")
@requires(Role.ADMIN)
def list_tokens(page: Paging, control: Control, project: InProject) -> Page[TokenAnswer]:
    """By name, without the tokens themselves."""
    return control.administration.tokens(page, project)


@token_router.delete("/{id}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.ADMIN)
def delete_token(id: str, control: Control, caller: Caller, project: InProject) -> None:
    """Revoke it: it stops working at once in this control plane, within seconds in others, and never works again."""
    control.tokens.delete(id, project, caller.name)


@webhook_router.post("", status_code=status.HTTP_201_CREATED)
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


@webhook_router.get("")
@requires(Role.ADMIN)
def list_webhooks(page: Paging, control: Control, project: InProject) -> Page[WebhookAnswer]:
    """Oldest first, without their secrets."""
    return control.administration.webhooks(page, project)


@webhook_router.get("/{id}")
@requires(Role.ADMIN)
def get_webhook(id: str, control: Control, project: InProject) -> WebhookAnswer:
    return control.administration.webhook(id, project)


@webhook_router.delete("/{id}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.ADMIN)
def delete_webhook(id: str, control: Control, project: InProject) -> None:
    """With what waits to be delivered to it."""
    control.webhooks.delete(id, project)


@audit_router.get("")
@requires(Role.ADMIN)
def list_audit(page: Paging, control: Control, project: InProject) -> Page[AuditEntryAnswer]:
    """Every call that changed something of the project, or was refused to, newest first."""
    return control.administration.audit(page, project)
