from __future__ import annotations

from fastapi import APIRouter, status

from epochal.errors import NameTaken
from epochal.service.api.access import requires
from epochal.service.api.answers import answers
from epochal.service.api.context import Control, Node
from epochal.service.api.gate import Caller
from epochal.service.api.paging import Paging
from epochal.wire.bodies import Page
from epochal.wire.operations import OperationAnswer
from epochal.wire.snapshots import CreateSavepoint, SavepointAnswer
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/savepoints", tags=["savepoints"])


@router.post("", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(NameTaken)
def create_savepoint(name: str, request: CreateSavepoint, control: Control, caller: Caller) -> OperationAnswer:
    """Of the next epoch boundary; of the last committed epoch when the application does not run."""
    return control.savepoints.create(name, request, caller.name)


@router.get("")
@requires(Role.VIEWER)
def list_savepoints(name: str, page: Paging, node: Node) -> Page[SavepointAnswer]:
    """By name."""
    return node.registered.savepoints(name, page)


@router.get("/{savepoint}")
@requires(Role.VIEWER)
def get_savepoint(name: str, savepoint: str, node: Node) -> SavepointAnswer:
    return node.registered.savepoint(name, savepoint)


@router.delete("/{savepoint}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.OPERATOR)
def delete_savepoint(name: str, savepoint: str, control: Control) -> None:
    """Forks of it keep what they need."""
    control.savepoints.delete(name, savepoint)
