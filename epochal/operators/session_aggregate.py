"""``window(session(..)).aggregate``: the rows of a key that are at most a gap apart, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from epochal.aggregates.plan import AggregationPlan
from epochal.declarations import event_time
from epochal.declarations.expressions import Expression
from epochal.declarations.windowing import WINDOW_START
from epochal.declarations.windows import SessionWindows
from epochal.operators.windowed import WindowedAggregate, session_tables
from epochal.state.table import StateTable
from epochal.tasks.operator import Work
from epochal.tasks.session_aggregates import SessionAggregateWork
from epochal.tasks.sessions import late_before


@dataclass(frozen=True)
class SessionAggregateOperator(WindowedAggregate):
    """State tables: the operator's name, with the open sessions of each key; ``name.entries``, when a key is looked at.

    A row is late where it would be a session by itself that has closed, as in Spark's ``session_window``: a row that is
    later than the watermark by more than the gap and the allowed lateness.
    """

    kind: ClassVar[str] = "session_aggregate"

    @property
    def gap(self) -> int:
        windows = self.windowing.windows
        assert isinstance(windows, SessionWindows)  # the others are another operator
        return windows.gap

    def late_before(self, input: int, late: int) -> int | None:
        return late_before(self.gap, late, self.windowing.allowed_lateness)

    def state(self, partials: StateTable) -> tuple[StateTable, ...]:
        return session_tables(partials, self.windowing)

    def work(self, aggregation: AggregationPlan, tables: tuple[StateTable, ...]) -> Work:
        sessions, entries = tables
        return SessionAggregateWork(aggregation, sessions, entries, self.gap, self.windowing.allowed_lateness)

    def pane(self) -> Expression:
        # Rows of one time are one row; which sessions they are part of, the task knows.
        start, _ = event_time.session_bounds(SessionWindows(self.gap), self.event_time)
        return start.alias(WINDOW_START)
