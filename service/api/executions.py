from __future__ import annotations

from fastapi import APIRouter

from epochal.service.api.access import requires
from epochal.service.api.context import Control
from epochal.service.api.paging import Paging
from epochal.wire.bodies import Page
from epochal.wire.executions import ExecutionAnswer
from epochal.wire.scopes import Scope

router = APIRouter(prefix="/v1/applications/{name}/executions", tags=["executions"])


@router.get("")
@requires(Scope.READ)
def list_executions(name: str, page: Paging, control: Control) -> Page[ExecutionAnswer]:
    """Newest first."""
    return control.executions.page(name, page)


@router.get("/{id}")
@requires(Scope.READ)
def get_execution(name: str, id: str, control: Control) -> ExecutionAnswer:
    """With its attempts, and why each of them ended."""
    return control.executions.get(name, id)
