"""What a hint says: which kinds of things have changed, so that nobody looks for what has not."""

from __future__ import annotations

from collections.abc import Iterable

from epochal.service.domain.ports import ControlEvent

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
