from __future__ import annotations

from datetime import datetime

from epochal.wire.bodies import Answer


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
