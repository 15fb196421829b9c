"""T2 of aggregates over sessions, compared with a loop over intervals for any order, epochs and watermarks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from epochal.contracts.conditions import BEGINNING, END, Watermarks
from epochal.declarations.intervals import HOUR, MINUTE
from epochal.declarations.windows import session, windowing
from epochal.operators.windows.panes import session_tables
from epochal.operators.windows.session_work import SESSION_END, SessionAggregateWork
from epochal.operators.windows.sessions import late_before
from epochal.operators.windows.work import WINDOW
from epochal.state.table import Column
from epochal.tasks.windows import timestamps
from tests.unit.tasks.window_events import (
    KEY,
    PARTIALS,
    PLAN,
    START,
    TABLE,
    VALUE,
    Event,
    Window,
    epochs,
    events,
    shown,
    summary,
)

GAP = 20 * MINUTE


@dataclass
class Loop:
    """Sessions by definition: intervals of rows, merged if they touch."""

    lateness: int
    open: dict[Window, list[int]] = field(default_factory=dict)

    def epoch(self, rows: list[Event], marks: Watermarks) -> dict[Window, Any]:
        """The closing sessions."""
        for key, time, value in rows:
            start, end, values = time, time + GAP, [value]
            for other in [w for w in self.open if w[0] == key and w[1] <= end and start <= w[2]]:
                start, end = min(start, other[1]), max(end, other[2])
                values += self.open.pop(other)
            self.open[key, start, end] = values
        closing = [window for window in self.open if window[2] + self.lateness < marks.fire]
        return {window: summary(self.open.pop(window)) for window in closing}


def partials(rows: list[Event]) -> list[dict[str, Any]]:
    by_time: dict[Any, list[int]] = {}
    for key, at, value in rows:
        by_time.setdefault((key, at), []).append(value)
    return [
        {
            "route": key[0],
            "number": key[1],
            "window_start": timestamps(np.array([at]))[0].as_py(),
            **dict(zip(VALUE, summary(values), strict=True)),
        }
        for (key, at), values in by_time.items()
    ]


def together(rows: list[Event]) -> list[dict[str, Any]]:
    """One partial for the rows of a session within the epoch, as Spark computes them."""
    loop = Loop(0)
    loop.epoch(rows, Watermarks())
    return [
        {
            "route": key[0],
            "number": key[1],
            "window_start": timestamps(np.array([start]))[0].as_py(),
            SESSION_END: timestamps(np.array([end]))[0].as_py(),
            **dict(zip(VALUE, summary(values), strict=True)),
        }
        for (key, start, end), values in loop.open.items()
    ]


def operator(make_operator: Any, lateness: int, rows: int = 8, ends: bool = False, **more: Any) -> Any:
    declared = replace(windowing(session("20 minutes"), "0 seconds", "final"), allowed_lateness=lateness)
    tables = session_tables(TABLE, declared)
    end = (Column(name=SESSION_END, type="timestamp"),) if ends else ()
    row = pa.schema([column.to_arrow() for column in (*KEY, WINDOW[0], *end, *PARTIALS)])
    output = pa.schema([column.to_arrow() for column in (*KEY, *WINDOW, *PARTIALS)])
    work = SessionAggregateWork(PLAN, *tables, GAP, lateness, rows)
    return make_operator(work, KEY, row, output, tables=tables, **more)


@pytest.mark.parametrize("number", range(6))
@pytest.mark.alternating(2)
def test_results_equal_a_loop_for_any_order_epochs_and_watermarks(
    make_operator: Any, number: int, run_seed: int
) -> None:
    choose = random.Random(f"{number} {run_seed}")
    lateness, kind = choose.choice([0, 7 * MINUTE]), choose.choice(["heap", "lmdb"])
    as_sessions = number % 2 == 0
    run = operator(make_operator, lateness, choose.choice([1, 8, 1000]), as_sessions, kind=kind, parallelism=2)
    loop = Loop(lateness)
    for rows, marks in epochs(choose, events(choose, MINUTE), delay=40 * MINUTE):
        bound = late_before(GAP, marks.late, lateness)
        timely = [row for row in rows if row[1] >= bound]
        run.watermarks = marks
        slice = together(timely) if as_sessions else partials(timely)
        if choose.random() < 0.2:
            run.attempt(slice)
        assert shown(run.run(slice)) == loop.epoch(timely, marks)
        waiting = [due.event for due in run.dues]
        ends = [end + lateness + 1 for _, _, end in loop.open]
        assert bool(waiting) == bool(ends)
        # An entry may be earlier than the end of its session; an epoch at its time corrects it.
        assert not ends or marks.fire < min(waiting) <= min(ends)
    assert not loop.open


def test_a_row_between_two_sessions_merges_them(make_operator: Any) -> None:
    run = operator(make_operator, 0, parallelism=1)
    key = ("JFK", 1)
    run.watermarks = Watermarks()
    run.run(partials([(key, START, 1), (key, START + 30 * MINUTE, 2)]))
    (sessions, _) = run.tables
    assert len(run.state(sessions)) == 2
    run.run(partials([(key, START + 15 * MINUTE, 4)]))
    assert list(run.state(sessions).values()) == [(timestamps(np.array([START + 50 * MINUTE]))[0].as_py(), 3, 7, 4)]
    run.watermarks = Watermarks(fire=START + HOUR)
    assert shown(run.run([])) == {(key, START, START + 50 * MINUTE): (3, 7, 4)}
    run.watermarks = Watermarks(late=START + HOUR, fire=START + 2 * HOUR)
    assert run.run([]) == [] and run.dues == []


def test_rows_that_extend_a_session_write_no_entries(make_operator: Any) -> None:
    run = operator(make_operator, 0, parallelism=1)
    for number in range(5):
        run.watermarks = Watermarks()
        run.run(partials([(("JFK", 1), START + number * 10 * MINUTE, 1)]))
    (_, entries) = run.tables
    assert len(run.state(entries)) == 1
    # The entry is due; the session is not over.
    run.watermarks = Watermarks(fire=START + 30 * MINUTE)
    assert run.run([]) == []
    assert len(run.state(entries)) == 2
    assert [due.event for due in run.dues] == [START + HOUR + 1]


@pytest.mark.parametrize("lateness", [0, 7 * MINUTE])
def test_a_row_at_the_end_of_a_session_extends_it_in_any_epoch(make_operator: Any, lateness: int) -> None:
    """It is not late if the watermark has only reached the end plus the allowed lateness."""
    key, end, reached = ("JFK", 1), START + GAP, START + GAP + lateness
    assert late_before(GAP, reached, lateness) == START
    found = []
    for cuts in ([[START, end]], [[START], [end]], [[end], [START]]):
        run = operator(make_operator, lateness, parallelism=1)
        output = []
        for times, late in zip(cuts, (BEGINNING, reached), strict=False):
            run.watermarks = Watermarks(late=late, fire=reached)
            output += run.run(partials([(key, time, 1) for time in times]))
        run.watermarks = Watermarks(late=reached, fire=END)
        found.append(shown([*output, *run.run([])]))
    assert found == [{(key, START, end + GAP): (2, 2, 1)}] * 3
