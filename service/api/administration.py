"""Projects, tokens, webhooks and the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, status

from epochal.errors import Conflict, NameTaken
from epochal.service.api.access import for_members, requires
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.idempotency import STORED_ANSWER
from epochal.service.api.openapi import answers
from epochal.service.api.parameters import Paging
from epochal.service.api.project_paths import InProject
from epochal.service.catalog.audit import AuditFilter
from epochal.wire.administration import AuditEntryAnswer, CreateWebhook, NewWebhookAnswer, WebhookAnswer
from epochal.wire.bodies import Name, Page, UtcTime
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
    """Create a project. Requires the role admin in `default`, which includes admin of every project. The name of a
    deleted project cannot be reused, because its history is kept."""
    return control.projects.create(request, caller.name)


@project_router.get("")
@for_members
def list_projects(page: Paging, control: Control, caller: Caller) -> Page[ProjectAnswer]:
    """List the projects in which the caller has a role, by name."""
    return control.known_projects.page(page, caller)


@project_router.get("/{project}")
@requires(Role.VIEWER)
def get_project(project: ProjectName, control: Control) -> ProjectAnswer:
    """Quotas of the project, and current usage. The role that is required is the role in this project."""
    return control.known_projects.get(project)


@project_router.put("/{project}")
@requires(Role.ADMIN)
def change_project(project: ProjectName, request: ChangeProject, control: Control, caller: Caller) -> ProjectAnswer:
    """Change the quotas. Requires the role admin in `default`. Existing resources are kept, even if they exceed the
    new quotas."""
    return control.projects.change(project, request, caller)


@project_router.delete("/{project}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.ADMIN)
@answers(Conflict)
def delete_project(project: ProjectName, control: Control, caller: Caller) -> None:
    """Delete a project without applications, with its tokens, webhooks, uploads and artifacts. Requires the role
    admin in `default`."""
    control.projects.delete(project, caller)


@token_router.post("", status_code=status.HTTP_201_CREATED)
@requires(Role.ADMIN)
@answers(NameTaken)
def create_token(
    body: CreateToken, request: Request, control: Control, caller: Caller, project: InProject
) -> NewTokenAnswer:
    """Create a token for this project only. The token is returned only in this answer."""
    answer = control.tokens.create(body, project, caller.name)
    setattr(request.state, STORED_ANSWER, answer.model_copy(update={"token": None}).model_dump_json().encode())
    return answer


@token_router.post("/{id}/rotate", status_code=status.HTTP_201_CREATED)
@requires(Role.ADMIN)
@answers(NameTaken)
def rotate_token(
    id: str, body: RotateToken, request: Request, control: Control, caller: Caller, project: InProject
) -> RotatedTokenAnswer:
    """Replace a token with a new one of the same name and scope, and revoke the old one. The new token is returned
    only in this answer. If the token is in the control plane's admin token file, the file is updated."""
    answer = control.tokens.rotate(id, body, project, caller.name)
    setattr(request.state, STORED_ANSWER, answer.model_copy(update={"token": None}).model_dump_json().encode())
    return answer


@token_router.get("")
@requires(Role.ADMIN)
def list_tokens(page: Paging, control: Control, project: InProject) -> Page[TokenAnswer]:
    """List tokens by name, without the secrets."""
    return control.administration.tokens(page, project)


@token_router.delete("/{id}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.ADMIN)
def delete_token(id: str, control: Control, caller: Caller, project: InProject) -> None:
    """Revoke a token. It stops working immediately in this control plane, and within seconds in others."""
    control.tokens.delete(id, project, caller.name)


@webhook_router.post("", status_code=status.HTTP_201_CREATED)
@requires(Role.ADMIN)
def create_webhook(
    body: CreateWebhook, request: Request, control: Control, caller: Caller, project: InProject
) -> NewWebhookAnswer:
    """Send the project's future events to a URL: each event at least once, the events of a webhook in order.
    Delivery is retried with growing intervals until the receiver answers 2xx; redirects are not followed. Headers:
    `Epochal-Event` (the kind), `Epochal-Event-Id` (the same for a repeated delivery), `Epochal-Signature:
    t=..,v1=..`, where v1 is the HMAC-SHA256 of `t`, a dot and the body with the webhook's secret. The secret is
    returned only in this answer."""
    answer = control.webhooks.create(body, project, caller.name)
    setattr(request.state, STORED_ANSWER, answer.model_copy(update={"secret": None}).model_dump_json().encode())
    return answer


@webhook_router.get("")
@requires(Role.ADMIN)
def list_webhooks(page: Paging, control: Control, project: InProject) -> Page[WebhookAnswer]:
    """List webhooks, oldest first, without their secrets."""
    return control.administration.webhooks(page, project)


@webhook_router.get("/{id}")
@requires(Role.ADMIN)
def get_webhook(id: str, control: Control, project: InProject) -> WebhookAnswer:
    return control.administration.webhook(id, project)


@webhook_router.delete("/{id}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.ADMIN)
def delete_webhook(id: str, control: Control, project: InProject) -> None:
    """Delete a webhook and its pending deliveries."""
    control.webhooks.delete(id, project)


@audit_router.get("")
@requires(Role.ADMIN)
def list_audit(
    page: Paging,
    control: Control,
    project: InProject,
    token: Annotated[
        str | None, Query(max_length=100, description="Only calls of the token, or of the person, with this name.")
    ] = None,
    action: Annotated[
        str | None,
        Query(
            max_length=200,
            description="Only calls of this action, as entries have it.",
            examples=["POST /v1/applications/{name}/stop"],
        ),
    ] = None,
    application: Annotated[
        Name | None, Query(description="Only calls that have this application in their path, or created it.")
    ] = None,
    since: Annotated[UtcTime | None, Query(description="Only calls at this time or later.")] = None,
    until: Annotated[UtcTime | None, Query(description="Only calls before this time.")] = None,
) -> Page[AuditEntryAnswer]:
    """List the mutating calls of the project, including refused ones, newest first."""
    return control.administration.audit(page, project, AuditFilter(token, action, application, since, until))
