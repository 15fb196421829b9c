"""Who may do what: tokens, scopes, and the one gate that every endpoint stands behind.

An endpoint says what it needs with :func:`requires`, :func:`public` or :func:`for_drivers`; one that says nothing is
refused, and a test walks all routes to find such. The gate itself is a dependency of the whole app.
"""

from __future__ import annotations

from epochal.service.security.scopes import (
    Access,
    Principal,
    Scope,
    access_of,
    changes_something,
    endpoint_of,
    for_drivers,
    public,
    reads_only,
    requires,
)

__all__ = [
    "Access",
    "Principal",
    "Scope",
    "access_of",
    "changes_something",
    "endpoint_of",
    "for_drivers",
    "public",
    "reads_only",
    "requires",
]
