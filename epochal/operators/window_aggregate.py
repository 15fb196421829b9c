"""``window(..).aggregate`` over tumbling, sliding and cumulative windows: state by pane, windows combined of panes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from epochal.aggregates.plan import AggregationPlan
from epochal.contracts.stream_kind import APPEND, StreamKind, upsert
from epochal.declarations import event_time
from epochal.declarations.expressions import Expression
from epochal.declarations.windowing import WINDOW_END, WINDOW_START
from epochal.declarations.windows import GridWindows
from epochal.operators.windowed import WindowedAggregate, pane_name, pane_table
from epochal.state.table import StateTable
from epochal.tasks.operator import Work
from epochal.tasks.window_aggregates import WindowAggregateWork
from epochal.tasks.windows import late_before


@dataclass(frozen=True)
class WindowAggregateOperator(WindowedAggregate):
    """State table: the operator's name, a row for each key and pane."""

    kind: ClassVar[str] = "window_aggregate"

    @property
    def windows(self) -> GridWindows:
        windows = self.windowing.windows
        assert isinstance(windows, GridWindows)  # sessions are another operator
        return windows

    def late_before(self, input: int, late: int) -> int | None:
        return late_before(self.windows, late, self.windowing.allowed_lateness)

    def gives(self, streams: Sequence[StreamKind]) -> StreamKind:
        if self.windowing.emit == "final":
            return APPEND
        return upsert((*self.keys, WINDOW_START, *((WINDOW_END,) if self.windows.cumulative else ())))

    def state(self, partials: StateTable) -> tuple[StateTable, ...]:
        return (pane_table(partials, self.windows, self.windowing),)

    def work(self, aggregation: AggregationPlan, tables: tuple[StateTable, ...]) -> Work:
        lateness, emit = self.windowing.allowed_lateness, self.windowing.emit
        return WindowAggregateWork(aggregation, tables[0], self.windows, lateness, emit)

    def pane(self) -> Expression:
        return event_time.pane_start(self.windows, self.event_time).alias(pane_name(self.windows))
