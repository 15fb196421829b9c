"""Access rules of endpoints: the role or kind of token that each one requires.

Every endpoint declares one of :func:`requires`, :func:`public` or :func:`for_drivers`; the gate (``gate.py``) refuses
an endpoint without a declaration, and a test walks all routes to find one.
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
_AUDITED = "__epochal_audited__"
_LOGIN = "__epochal_login__"
_UNMETERED = "__epochal_unmetered__"
_FENCED_WITHIN = "__epochal_fenced_within__"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def requires(role: Role) -> Callable[[Endpoint], Endpoint]:
    """Require this role, or one that includes it. Goes below the route decorator."""
    return _marker(Access(role.value))


def reads_only(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint that changes nothing although it requires more than the role ``viewer``."""
    setattr(endpoint, _READS_ONLY, True)
    return endpoint


def repeatable(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint that may be called again with the same request, also after an interrupted call."""
    setattr(endpoint, _REPEATABLE, True)
    return endpoint


def by_request_id(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint that receives application data, such as the rows of a source. Each request carries an id for
    repeating it, and requests are too numerous for the audit log."""
    setattr(endpoint, _BY_REQUEST_ID, True)
    return endpoint


def for_members(endpoint: Endpoint) -> Endpoint:
    """Require a role in any project; the answer is limited to the caller's projects."""
    return _marker(Access.MEMBER)(endpoint)


def audited(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint for members that changes something. Its calls are audited and count as mutating calls; they
    accept no Idempotency-Key."""
    setattr(endpoint, _AUDITED, True)
    return endpoint


def login(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint that creates a session from a token: attempts are limited by address, also failed ones."""
    setattr(endpoint, _LOGIN, True)
    return endpoint


def unmetered(endpoint: Endpoint) -> Endpoint:
    """Exempt an endpoint from the rate limit: it serves an application's data, and a call is cheap."""
    setattr(endpoint, _UNMETERED, True)
    return endpoint


def public(endpoint: Endpoint) -> Endpoint:
    """Require no token."""
    return _marker(Access.PUBLIC)(endpoint)


def for_drivers(endpoint: Endpoint) -> Endpoint:
    """Require the token of exactly the execution and attempt in the path."""
    return _marker(Access.DRIVER)(endpoint)


def fenced_within(endpoint: Endpoint) -> Endpoint:
    """Mark a driver endpoint that rejects an ended attempt within its own transaction, so that the gate need not check
    it.

    A change that was committed before the attempt ended is answered as committed; the driver would otherwise treat it
    as undecided.
    """
    setattr(endpoint, _FENCED_WITHIN, True)
    return endpoint


def for_pods(endpoint: Endpoint) -> Endpoint:
    """Require the token that the cluster issued for the driver's pod in the path."""
    return _marker(Access.POD)(endpoint)


def _marker(access: Access) -> Callable[[Endpoint], Endpoint]:
    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _ATTRIBUTE, access)
        return endpoint

    return mark


def access_of(endpoint: object) -> Access | None:
    """Declared access of an endpoint; ``None`` without a declaration."""
    access = getattr(endpoint, _ATTRIBUTE, None)
    return access if isinstance(access, Access) else None


def changes_something(endpoint: object) -> bool:
    """Return whether calls of the endpoint are audited and accept an Idempotency-Key."""
    without = getattr(endpoint, _READS_ONLY, False) or getattr(endpoint, _BY_REQUEST_ID, False)
    return access_of(endpoint) in (Access.OPERATOR, Access.AUTHOR, Access.ADMIN) and not without


def is_audited(endpoint: object) -> bool:
    """Return whether calls of the endpoint are recorded in the audit log, and count as mutating calls."""
    return changes_something(endpoint) or bool(getattr(endpoint, _AUDITED, False))


def is_login(endpoint: object) -> bool:
    """Return whether calls of the endpoint are attempts to log in."""
    return bool(getattr(endpoint, _LOGIN, False))


def is_metered(endpoint: object) -> bool:
    """Return whether calls of the endpoint count towards the rate limit of a token."""
    return not (getattr(endpoint, _UNMETERED, False) or getattr(endpoint, _BY_REQUEST_ID, False))


def may_be_repeated(endpoint: object) -> bool:
    """Return whether a call whose answer was lost is executed again, although it may have had an effect."""
    return bool(getattr(endpoint, _REPEATABLE, False))


def is_fenced_within(endpoint: object) -> bool:
    """Return whether the endpoint itself rejects the driver of an ended attempt."""
    return bool(getattr(endpoint, _FENCED_WITHIN, False))
