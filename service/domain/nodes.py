"""Nodes: the control planes and query nodes of one catalog, and which of them a driver may call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import urlsplit

from epochal.addresses import is_loopback

Role = Literal["control", "query"]

HEARTBEAT_SECONDS = 2.0
GONE_SECONDS = 10.0
"""A node that was not heard for so long is taken for gone: drivers are not sent to it any more."""
FORGOTTEN_SECONDS = 3600.0
"""So long people see that a node was there which did not say that it stops."""


@dataclass(frozen=True)
class Node:
    """One process that ``epochal up`` is. ``host`` and ``boot``: the machine that runs it, since which start of it.

    ``internal_url``: where it answers drivers; ``None`` for a query node, which does not.
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
    """Control planes that drivers on other machines, of which these know, cannot call."""
    control = [node for node in nodes if node.role == "control"]
    return [
        node
        for node in control
        if is_loopback(urlsplit(node.internal_url or "").hostname or "")
        and any((other.host, other.boot) != (node.host, node.boot) for other in control)
    ]


class Place(Protocol):
    """A machine, as a :class:`Node` names it."""

    @property
    def host(self) -> str: ...

    @property
    def boot(self) -> str: ...


def driver_urls(nodes: Sequence[Node], own: str, here: Place) -> tuple[str, ...]:
    """Where drivers may call, as the control plane on the machine ``here`` that answers them at ``own`` says; ``own``
    comes first. A loopback address of another machine would mean the driver's.
    """
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
