"""What a query node does not answer: who does."""

from __future__ import annotations

from fastapi import Request

from epochal.errors import MisdirectedRequest
from epochal.service.api.access import requires
from epochal.service.api.context import Node
from epochal.wire.scopes import Scope


@requires(Scope.READ)
def elsewhere(request: Request, node: Node) -> None:
    raise MisdirectedRequest(
        f"This is a query node, which answers look-ups only; {request.method} {request.url.path} is answered by a "
        "control plane."
    )
