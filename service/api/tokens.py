from __future__ import annotations

from fastapi import APIRouter, Request, status

from epochal.errors import NameTaken
from epochal.service.api.access import requires
from epochal.service.api.answers import answers
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.idempotency import STORED_ANSWER
from epochal.service.api.paging import Paging
from epochal.service.api.project_paths import InProject
from epochal.wire.bodies import Page
from epochal.wire.tokens import CreateToken, NewTokenAnswer, Role, RotatedTokenAnswer, RotateToken, TokenAnswer

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])


@router.post("", status_code=status.HTTP_201_CREATED)
@requires(Role.ADMIN)
@answers(NameTaken)
def create_token(
    body: CreateToken, request: Request, control: Control, caller: Caller, project: InProject
) -> NewTokenAnswer:
    """For the project, and no other one. The token is in this answer, and never again."""
    answer = control.tokens.create(body, project, caller.name)
    setattr(request.state, STORED_ANSWER, answer.model_copy(update={"token": None}).model_dump_json().encode())
    return answer


@router.post("/{id}/rotate", status_code=status.HTTP_201_CREATED)
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


@router.get("")
@requires(Role.ADMIN)
def list_tokens(page: Paging, control: Control, project: InProject) -> Page[TokenAnswer]:
    """By name, without the tokens themselves."""
    return control.administration.tokens(page, project)


@router.delete("/{id}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.ADMIN)
def delete_token(id: str, control: Control, caller: Caller, project: InProject) -> None:
    """Revoke it: it stops working at once in this control plane, within seconds in others, and never works again."""
    control.tokens.delete(id, project, caller.name)
