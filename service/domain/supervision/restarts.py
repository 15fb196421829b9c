"""The restart strategy: exponential back-off, at most so many failures within a window. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from epochal.wire.configuration import RestartStrategy


def recent_failures(ended: Sequence[datetime], strategy: RestartStrategy, now: datetime) -> int:
    """How many attempts have ended within the window; ``ended``: when each of them did."""
    return sum(moment > now - timedelta(seconds=strategy.window_seconds) for moment in ended)


def next_attempt_at(ended: Sequence[datetime], strategy: RestartStrategy, now: datetime) -> datetime | None:
    """When the next attempt begins after the last one ended; ``None``: there will be none."""
    recent = recent_failures(ended, strategy, now)
    if recent > strategy.max_restarts:
        return None
    pause = min(strategy.backoff_seconds * 2 ** max(0, recent - 1), strategy.backoff_limit_seconds)
    return ended[-1] + timedelta(seconds=pause)
