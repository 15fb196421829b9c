"""Nodes of a catalog (control planes and query nodes), and the URLs at which drivers reach them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import urlsplit

from epochal.addresses import is_loopback

Role = Literal["control", "query"]

HEARTBEAT_SECONDS = 2.0
GONE_SECONDS = 10.0
"""Heartbeat timeout of nodes; drivers are no longer referred to a node after it."""
FORGOTTEN_SECONDS = 3600.0
"""Time for which a node that did not report its stop is listed."""


@dataclass(frozen=True)
class Node:
    """A control plane or query node. ``host`` and ``boot``: its machine and the machine's boot id.

    ``internal_url``: where it serves drivers; ``None`` for a query node.
    """

    id: str
    role: Role
    host: str
    boot: str
    process: int
    public_url: str
    internal_url: str | None
    version: str


def out_of_reach(nodes: Sequence[Node]) -> Sequence[Node]:
    """Control planes that drivers on the machines of other nodes cannot reach."""
    control = [node for node in nodes if node.role == "control"]
    return [
        node
        for node in control
        if is_loopback(urlsplit(node.internal_url or "").hostname or "")
        and any((other.host, other.boot) != (node.host, node.boot) for other in control)
    ]


class Place(Protocol):
    """A machine, as identified by a :class:`Node`."""

    @property
    def host(self) -> str: ...

    @property
    def boot(self) -> str: ...


def driver_urls(nodes: Sequence[Node], own: str, here: Place) -> tuple[str, ...]:
    """URLs for a driver, as reported by the control plane on machine ``here`` that serves it at ``own``, which comes
    first. Loopback addresses of other machines are left out: they would denote the driver's own."""
    others = {
        node.internal_url
        for node in nodes
        if node.role == "control"
        and node.internal_url is not None
        and (
            (node.host, node.boot) == (here.host, here.boot)
            or not is_loopback(urlsplit(node.internal_url).hostname or "")
        )
    }
    return (own, *sorted(others - {own}))
