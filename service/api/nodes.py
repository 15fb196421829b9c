from __future__ import annotations

from fastapi import APIRouter

from epochal.service.api.access import requires
from epochal.service.api.context import Node
from epochal.service.api.paging import Paging
from epochal.wire.administration import NodeAnswer
from epochal.wire.bodies import Page
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


@router.get("")
@requires(Role.VIEWER)
def list_nodes(page: Paging, node: Node) -> Page[NodeAnswer]:
    """The control planes and query nodes of this catalog, oldest first."""
    return node.nodes.page(page)
