from __future__ import annotations

from fastapi import APIRouter

from epochal.service.context import Control
from epochal.service.operations.schemas import OperationAnswer
from epochal.service.pagination import Paging
from epochal.service.schema import Page
from epochal.service.security import Scope, requires

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
