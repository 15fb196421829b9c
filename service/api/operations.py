from __future__ import annotations

from fastapi import APIRouter

from epochal.service.api.access import requires
from epochal.service.api.context import Control
from epochal.service.api.paging import Paging
from epochal.wire.bodies import Page
from epochal.wire.operations import OperationAnswer
from epochal.wire.scopes import Scope

router = APIRouter(prefix="/v1/operations", tags=["operations"])


@router.get("")
@requires(Scope.READ)
def list_operations(page: Paging, control: Control, application: str | None = None) -> Page[OperationAnswer]:
    """Newest first."""
    return control.operations.page(page, application)


@router.get("/{id}")
@requires(Scope.READ)
def get_operation(id: str, control: Control) -> OperationAnswer:
    return control.operations.get(id)
