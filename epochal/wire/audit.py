from __future__ import annotations

from datetime import datetime

from epochal.wire.bodies import Answer


class AuditAnswer(Answer):
    """One mutating call. ``outcome`` is the HTTP status that it was answered with."""

    at: datetime
    token: str | None
    action: str
    target: str
    outcome: int
