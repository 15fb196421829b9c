"""How many operations have ended, counted from when somebody first asks: their history is never read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from epochal.service.catalog.models import Operation

OVERLAP = timedelta(seconds=60)
"""An operation may be seen so long after it says that it has ended: transactions take time, and clocks differ."""


@dataclass
class Collected:
    """What collections have deleted, and when the latest one ended."""

    files: int = 0
    bytes: int = 0
    at: datetime | None = None


class EndedOperations:
    """Not thread-safe. ``ended``: by kind and state."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        self.collected = Collected()
        self._since: datetime | None = None
        self._seen: dict[str, datetime] = {}

    def read(self, session: Session, moment: datetime) -> None:
        """Count those that have ended since the last call; at the first call, which are there already."""
        first = self._since is None
        since = (self._since or moment) - OVERLAP
        columns = Operation.id, Operation.kind, Operation.state, Operation.finished_at, Operation.result
        for id, kind, state, finished_at, result in session.execute(
            select(*columns).where(Operation.finished_at > since).order_by(Operation.finished_at)
        ):
            if id in self._seen or finished_at is None:
                continue
            self._seen[id] = finished_at
            if not first:
                self._count(kind, state, finished_at, result)
        self._since = moment
        self._seen = {id: at for id, at in self._seen.items() if at > moment - 2 * OVERLAP}

    def _count(self, kind: str, state: str, at: datetime, result: Mapping[str, object] | None) -> None:
        self.ended[kind, state] += 1
        if kind == "collect" and state == "succeeded":
            deleted = (result or {}).get("deleted")
            if isinstance(deleted, Mapping):
                self.collected.files += int(deleted.get("files", 0))
                self.collected.bytes += int(deleted.get("bytes", 0))
            self.collected.at = at


def running_operations(session: Session) -> Mapping[str, int]:
    """By kind."""
    running = select(Operation.kind, func.count()).where(Operation.finished_at.is_(None)).group_by(Operation.kind)
    return {row[0]: row[1] for row in session.execute(running)}
