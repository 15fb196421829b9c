"""``window(session(..)).aggregate``: the rows of a key that are at most a gap apart, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from epochal.operators.window_aggregate import WindowedAggregate


@dataclass(frozen=True)
class SessionAggregateOperator(WindowedAggregate):
    """State tables: the operator's name, with the open sessions of each key; ``name.entries``, when a key is looked at.

    A row is late where it would be a session by itself that has closed, as in Spark's ``session_window``: a row that is
    later than the watermark by more than the gap and the allowed lateness.
    """

    kind: ClassVar[str] = "session_aggregate"
