from __future__ import annotations

from fastapi import APIRouter

from epochal.service.api.access import requires
from epochal.service.api.context import Node
from epochal.wire.applications import LoadAnswer
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/load", tags=["applications"])


@router.get("")
@requires(Role.VIEWER)
def get_load(name: str, node: Node) -> LoadAnswer:
    """How busy its operators were within the last minute: by operator rows and seconds of work, skew, and stragglers;
    and what autoscaling makes of it."""
    return node.load.load(name)
