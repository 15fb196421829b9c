from __future__ import annotations

from fastapi import APIRouter, status

from epochal.service.context import Control
from epochal.service.operations.schemas import OperationAnswer
from epochal.service.pagination import Paging
from epochal.service.savepoints.schemas import CreateSavepoint, SavepointAnswer
from epochal.service.schema import Page
from epochal.service.security import Scope, requires
from epochal.service.security.gate import Caller

router = APIRouter(prefix="/v1/applications/{name}/savepoints", tags=["savepoints"])


@router.post("", status_code=status.HTTP_202_ACCEPTED)
@requires(Scope.OPERATE)
def create_savepoint(name: str, request: CreateSavepoint, control: Control, caller: Caller) -> OperationAnswer:
    """Of the next epoch boundary; of the last committed epoch when the application does not run."""
    return control.savepoints.create(name, request, caller.name)


@router.get("")
@requires(Scope.READ)
def list_savepoints(name: str, page: Paging, control: Control) -> Page[SavepointAnswer]:
    """By name."""
    return control.savepoints.page(name, page)


@router.get("/{savepoint}")
@requires(Scope.READ)
def get_savepoint(name: str, savepoint: str, control: Control) -> SavepointAnswer:
    return control.savepoints.get(name, savepoint)


@router.delete("/{savepoint}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Scope.OPERATE)
def delete_savepoint(name: str, savepoint: str, control: Control) -> None:
    """Forks of it keep what they need."""
    control.savepoints.delete(name, savepoint)
