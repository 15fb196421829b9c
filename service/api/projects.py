from __future__ import annotations

from fastapi import APIRouter, status

from epochal.errors import Conflict, NameTaken
from epochal.service.api.access import for_members, requires
from epochal.service.api.answers import answers
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.paging import Paging
from epochal.wire.bodies import Page
from epochal.wire.projects import ChangeProject, CreateProject, ProjectAnswer, ProjectName
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/projects", tags=["projects"])


@router.post("", status_code=status.HTTP_201_CREATED)
@requires(Role.ADMIN)
@answers(NameTaken)
def create_project(request: CreateProject, control: Control, caller: Caller) -> ProjectAnswer:
    """By an admin of `default`, who is one of the installation, and of each project. The name of a project that was
    deleted is not given again: its history is still there."""
    return control.projects.create(request, caller.name)


@router.get("")
@for_members
def list_projects(page: Paging, control: Control, caller: Caller) -> Page[ProjectAnswer]:
    """Those in which the caller has a role, by name."""
    return control.known_projects.page(page, caller)


@router.get("/{project}")
@requires(Role.VIEWER)
def get_project(project: ProjectName, control: Control) -> ProjectAnswer:
    """Its quotas, and what it has of what they bound. The role is that in the project."""
    return control.known_projects.get(project)


@router.put("/{project}")
@requires(Role.ADMIN)
def change_project(project: ProjectName, request: ChangeProject, control: Control, caller: Caller) -> ProjectAnswer:
    """Other quotas, by an admin of `default`. What is there already stays, whatever they allow."""
    return control.projects.change(project, request, caller)


@router.delete("/{project}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.ADMIN)
@answers(Conflict)
def delete_project(project: ProjectName, control: Control, caller: Caller) -> None:
    """By an admin of `default`, when it has no applications. Its tokens, webhooks, uploads and artifacts go with it."""
    control.projects.delete(project, caller)
