"""Events of the control plane, and topics of the hints about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

EventKind = Literal["epoch", "execution", "savepoint", "operation", "straggler", "transaction"]
"""Kinds of events that are stored with their change."""

StreamedKind = Literal["epoch", "execution", "savepoint", "operation", "straggler", "transaction", "load"]
"""Kinds that a stream can select."""

LOAD: Final = "load"
"""Kind of events that are not stored: they have no number, and only streams that select the kind have them."""


@dataclass(frozen=True)
class ControlEvent:
    """A change. ``data`` is JSON and repeats ``application``; ``None`` if no application is concerned (yet)."""

    kind: EventKind
    application: str | None
    data: dict[str, Any]
    at: datetime


Topics = frozenset[str]

COMMITTED = "epoch.committed"
ABORTED = "epoch.aborted"
EXECUTION = "execution"
SAVEPOINT = "savepoint"
OPERATION = "operation"
CALL = "call"
"""Calls of entries arrived. Not an event, as there may be thousands in a second."""
EVERYTHING: Topics = frozenset(
    {"epoch.started", "epoch.prepared", COMMITTED, ABORTED, EXECUTION, SAVEPOINT, OPERATION, CALL}
)
"""All topics, for use after hints may have been missed."""


def topics_of(events: Iterable[ControlEvent]) -> Topics:
    """Topics of events: their kinds, and for epochs also the state."""
    return frozenset(f"epoch.{event.data['state']}" if event.kind == "epoch" else event.kind for event in events)
