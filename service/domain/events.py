"""Events of the control plane, the topics of hints about them, and calls of entries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

EventKind = Literal["epoch", "execution", "savepoint", "operation"]


@dataclass(frozen=True)
class ControlEvent:
    """Something has changed. ``data`` is JSON and repeats ``application``, ``None`` where none is concerned (yet)."""

    kind: EventKind
    application: str | None
    data: dict[str, Any]
    at: datetime


class TakenCall(NamedTuple):
    """A call in the inbox. ``new``: it came just now."""

    number: int
    entry: str
    new: bool


Topics = frozenset[str]

COMMITTED = "epoch.committed"
ABORTED = "epoch.aborted"
EXECUTION = "execution"
SAVEPOINT = "savepoint"
OPERATION = "operation"
CALL = "call"
"""A call of an application's entries has come: no event, as there may be thousands in a second."""
EVERYTHING: Topics = frozenset(
    {"epoch.started", "epoch.prepared", COMMITTED, ABORTED, EXECUTION, SAVEPOINT, OPERATION, CALL}
)
"""When hints may have been missed."""


def topics_of(events: Iterable[ControlEvent]) -> Topics:
    """Kinds of events; of epochs with their state."""
    return frozenset(f"epoch.{event.data['state']}" if event.kind == "epoch" else event.kind for event in events)
