"""``/v1/operations``: work in the background."""

from __future__ import annotations

from fastapi import APIRouter, status

from epochal.errors import NotFound
from epochal.service.api.access import requires
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import answers
from epochal.service.api.parameters import Paging
from epochal.service.api.project_paths import InProject
from epochal.wire.bodies import Name, Page
from epochal.wire.operations import OperationAnswer
from epochal.wire.projects import full_name
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/operations", tags=["operations"])


@router.get("")
@requires(Role.VIEWER)
@answers(NotFound)
def list_operations(
    page: Paging, control: Control, project: InProject, application: Name | None = None
) -> Page[OperationAnswer]:
    """List the operations of the project, newest first. Operations on the whole store belong to `default`."""
    return control.operations.page(page, project, None if application is None else full_name(project, application))


@router.get("/{id}")
@requires(Role.VIEWER)
def get_operation(id: str, control: Control, project: InProject) -> OperationAnswer:
    return control.operations.get(id, project)


@router.post("/{id}/cancel", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
def cancel_operation(id: str, control: Control, caller: Caller, project: InProject) -> OperationAnswer:
    """Cancel an export, an import, a trial, a rekey or, with the role admin, a collection or a verification, and
    remove its results. The state stays `running` until everything is removed, then becomes `cancelled`. 409 for
    operations that the application's driver ends, and for operations that have succeeded or failed."""
    return control.cancellation.cancel(id, caller, project)
