"""What a query node does not answer: who does."""

from __future__ import annotations

from fastapi import Request

from epochal.errors import MisdirectedRequest
from epochal.service.api.access import requires
from epochal.service.api.context import Node
from epochal.wire.tokens import Role


@requires(Role.VIEWER)
def elsewhere(request: Request, node: Node) -> None:
    urls = node.nodes.control_planes()
    raise MisdirectedRequest(
        f"This is a query node, which only shows what is there; {request.method} {request.url.path} is for a control "
        f"plane: {' or '.join(urls) or 'none of this catalog is running'}."
    )
