from __future__ import annotations

from datetime import datetime

from pydantic import JsonValue

from epochal.wire.bodies import Answer


class AuditChange(Answer):
    """One field of what people decide, before the call and after it; ``None``: there was, or is, nothing. Long values
    are cut. ``subject``: of what, such as ``version 3``, which is compared with the version before it."""

    subject: str
    field: str
    before: JsonValue = None
    after: JsonValue = None


class AuditAnswer(Answer):
    """One mutating call. ``outcome`` is the HTTP status that it was answered with; ``token`` and ``token_id`` the name
    and the id of the caller's token; ``address`` where the caller's connection came from; ``request`` the answer's
    ``X-Request-Id``."""

    at: datetime
    token: str | None
    token_id: str | None = None
    address: str | None = None
    request: str = ""
    action: str
    target: str
    outcome: int
    changes: tuple[AuditChange, ...] = ()
    """What the call has changed; empty of calls that were refused, and of entries of before."""
    changes_left_out: int = 0
    """So many more."""
