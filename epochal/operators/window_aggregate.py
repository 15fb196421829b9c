"""``window(..).aggregate`` over tumbling, sliding and cumulative windows: state by pane, windows combined of panes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from epochal.operators.windowed import WindowedAggregate


@dataclass(frozen=True)
class WindowAggregateOperator(WindowedAggregate):
    """State table: the operator's name, a row for each key and pane."""

    kind: ClassVar[str] = "window_aggregate"
