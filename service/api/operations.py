from __future__ import annotations

from fastapi import APIRouter, status

from epochal.errors import NotFound
from epochal.service.api.access import requires
from epochal.service.api.answers import answers
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.paging import Paging
from epochal.wire.bodies import Page
from epochal.wire.operations import OperationAnswer
from epochal.wire.roles import Role

router = APIRouter(prefix="/v1/operations", tags=["operations"])


@router.get("")
@requires(Role.VIEWER)
@answers(NotFound)
def list_operations(page: Paging, control: Control, application: str | None = None) -> Page[OperationAnswer]:
    """Newest first."""
    return control.operations.page(page, application)


@router.get("/{id}")
@requires(Role.VIEWER)
def get_operation(id: str, control: Control) -> OperationAnswer:
    return control.operations.get(id)


@router.post("/{id}/cancel", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
def cancel_operation(id: str, control: Control, caller: Caller) -> OperationAnswer:
    """End an export, an import, a trial, a rekey, or (with the role admin) a collection or a verification, and
    remove what it has written. Its state stays `running` until nothing is left, and is `cancelled` then. 409 for kinds
    that the application's driver ends, and for what has succeeded or failed already."""
    return control.cancellation.cancel(id, caller)
