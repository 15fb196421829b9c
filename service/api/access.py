"""How an endpoint says what a caller needs.

:func:`requires`, :func:`public` or :func:`for_drivers`; an endpoint that says nothing is refused, and a test walks all
routes to find such. The gate itself is middleware of the whole app (``gate.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from epochal.service.domain.permissions import Access
from epochal.wire.tokens import Role

_ATTRIBUTE = "__epochal_access__"
_READS_ONLY = "__epochal_reads_only__"
_REPEATABLE = "__epochal_repeatable__"
_BY_REQUEST_ID = "__epochal_by_request_id__"
_UNMETERED = "__epochal_unmetered__"
_FENCED_WITHIN = "__epochal_fenced_within__"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def requires(role: Role) -> Callable[[Endpoint], Endpoint]:
    """The endpoint needs this role, or one that includes it. Stands below the route decorator."""
    return _marker(Access(role.value))


def reads_only(endpoint: Endpoint) -> Endpoint:
    """The endpoint changes nothing, although it needs more than the role ``viewer``."""
    setattr(endpoint, _READS_ONLY, True)
    return endpoint


def repeatable(endpoint: Endpoint) -> Endpoint:
    """To call the endpoint again with the same request does no harm, also where it was cut off half-way."""
    setattr(endpoint, _REPEATABLE, True)
    return endpoint


def by_request_id(endpoint: Endpoint) -> Endpoint:
    """What comes to the endpoint are data of an application, as the rows of its sources: each has an id of its own by
    which it is repeated, and they are too many for the audit log."""
    setattr(endpoint, _BY_REQUEST_ID, True)
    return endpoint


def for_members(endpoint: Endpoint) -> Endpoint:
    """The endpoint needs a role in any project, and answers what that one may know."""
    return _marker(Access.MEMBER)(endpoint)


def unmetered(endpoint: Endpoint) -> Endpoint:
    """The endpoint is what an application is for, and costs little: how often one token calls it is not bounded."""
    setattr(endpoint, _UNMETERED, True)
    return endpoint


def public(endpoint: Endpoint) -> Endpoint:
    """The endpoint needs no token."""
    return _marker(Access.PUBLIC)(endpoint)


def for_drivers(endpoint: Endpoint) -> Endpoint:
    """The endpoint needs the token of exactly the execution and attempt in its path."""
    return _marker(Access.DRIVER)(endpoint)


def fenced_within(endpoint: Endpoint) -> Endpoint:
    """Of an endpoint for drivers: it refuses an attempt that is over by itself, in the transaction in which it acts, so
    that the gate need not ask.

    What had landed before the end is answered as landed: the driver would take it for undecided otherwise.
    """
    setattr(endpoint, _FENCED_WITHIN, True)
    return endpoint


def for_pods(endpoint: Endpoint) -> Endpoint:
    """The endpoint needs the token that a cluster has made for the pod of the driver in its path."""
    return _marker(Access.POD)(endpoint)


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
    without = getattr(endpoint, _READS_ONLY, False) or getattr(endpoint, _BY_REQUEST_ID, False)
    return access_of(endpoint) in (Access.OPERATOR, Access.AUTHOR, Access.ADMIN) and not without


def is_metered(endpoint: object) -> bool:
    """Whether it is counted how often one token calls the endpoint."""
    return not (getattr(endpoint, _UNMETERED, False) or getattr(endpoint, _BY_REQUEST_ID, False))


def may_be_repeated(endpoint: object) -> bool:
    """Of a call whose answer was lost: whether it is made again, although it may have had an effect."""
    return bool(getattr(endpoint, _REPEATABLE, False))


def is_fenced_within(endpoint: object) -> bool:
    """Whether the endpoint itself refuses the driver of an attempt that is over."""
    return bool(getattr(endpoint, _FENCED_WITHIN, False))
