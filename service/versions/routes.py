from __future__ import annotations

from fastapi import APIRouter, status

from epochal.service.context import Control
from epochal.service.pagination import Paging
from epochal.service.schema import Page
from epochal.service.security import Scope, requires
from epochal.service.security.gate import Caller
from epochal.service.versions.schemas import CreateVersion, VersionAnswer

router = APIRouter(prefix="/v1/applications/{name}/versions", tags=["versions"])


@router.get("")
@requires(Scope.READ)
def list_versions(name: str, page: Paging, control: Control) -> Page[VersionAnswer]:
    """Newest first."""
    return control.versions.page(name, page)


@router.post("", status_code=status.HTTP_201_CREATED)
@requires(Scope.OPERATE)
def create_version(name: str, request: CreateVersion, control: Control, caller: Caller) -> VersionAnswer:
    """Give a stopped application other code, parameters or configuration, for its next start."""
    return control.versions.create(name, request, caller.name)
