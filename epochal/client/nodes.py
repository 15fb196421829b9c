"""The control planes and query nodes of a catalog."""

from __future__ import annotations

from epochal.client.models import Node
from epochal.client.transport import Transport


class Nodes:
    """``client.nodes``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, limit: int | None = None) -> list[Node]:
        """Oldest first; one that did not stop in order is ``gone`` for an hour."""
        return self._transport.pages("/v1/nodes", Node, limit)
