"""Scopes (read < operate < admin), and how an endpoint says which it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from fastapi.routing import iter_route_contexts
from starlette.routing import Match

_ATTRIBUTE = "__epochal_access__"
_READS_ONLY = "__epochal_reads_only__"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Scope(StrEnum):
    """What a token may do. ``operate`` includes submitting code, which is code execution."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: Scope) -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


class Access(StrEnum):
    """What an endpoint needs: a scope, nothing, or the token of the driver that its path names."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"
    PUBLIC = "public"
    DRIVER = "driver"

    @property
    def scope(self) -> Scope | None:
        return Scope(self.value) if self in (Access.READ, Access.OPERATE, Access.ADMIN) else None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is calling. ``id`` is the token's; ``name`` stands in ``created_by`` and in the audit log."""

    id: str
    name: str
    scope: Scope


ANONYMOUS = Principal(id="anonymous", name="anonymous", scope=Scope.ADMIN)
"""Everybody, where authentication is off (loopback only)."""


def requires(scope: Scope) -> Callable[[Endpoint], Endpoint]:
    """The endpoint needs a token of this scope, or of one that includes it. Stands below the route decorator."""
    return _marker(Access(scope.value))


def reads_only(endpoint: Endpoint) -> Endpoint:
    """The endpoint changes nothing, although it needs more than the scope ``read``."""
    setattr(endpoint, _READS_ONLY, True)
    return endpoint


def public(endpoint: Endpoint) -> Endpoint:
    """The endpoint needs no token."""
    return _marker(Access.PUBLIC)(endpoint)


def for_drivers(endpoint: Endpoint) -> Endpoint:
    """The endpoint needs the token of exactly the execution and attempt in its path."""
    return _marker(Access.DRIVER)(endpoint)


def _marker(access: Access) -> Callable[[Endpoint], Endpoint]:
    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _ATTRIBUTE, access)
        return endpoint

    return mark


def access_of(endpoint: object) -> Access | None:
    """What the endpoint needs; ``None`` when it does not say."""
    access = getattr(endpoint, _ATTRIBUTE, None)
    return access if isinstance(access, Access) else None


def changes_something(endpoint: object) -> bool:
    """Such calls are audited, and take an Idempotency-Key; others write nothing."""
    return access_of(endpoint) in (Access.OPERATE, Access.ADMIN) and not getattr(endpoint, _READS_ONLY, False)


def endpoint_of(scope: Mapping[str, Any]) -> object | None:
    """The endpoint that a request will be answered by, before it was routed; ``None`` when there is none."""
    for route in iter_route_contexts(scope["app"].routes):
        match, found = route.matches(scope)
        if match is Match.FULL:
            endpoint: object = found.get("endpoint")
            return endpoint
    return None
