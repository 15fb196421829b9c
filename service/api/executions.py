from __future__ import annotations

from fastapi import APIRouter

from epochal.service.api.access import requires
from epochal.service.api.context import Node
from epochal.service.api.paging import Paging
from epochal.wire.applications import ExecutionAnswer
from epochal.wire.bodies import Page
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/executions", tags=["executions"])


@router.get("")
@requires(Role.VIEWER)
def list_executions(name: str, page: Paging, node: Node) -> Page[ExecutionAnswer]:
    """Newest first."""
    return node.executions.page(name, page)


@router.get("/{id}")
@requires(Role.VIEWER)
def get_execution(name: str, id: str, node: Node) -> ExecutionAnswer:
    """With its attempts, and why each of them ended."""
    return node.executions.get(name, id)
