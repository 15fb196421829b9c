"""T2 of windowed aggregates, compared with a loop over windows for any order, epochs and watermarks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from epochal.contracts.conditions import Watermarks
from epochal.declarations.intervals import DAY, HOUR, MINUTE
from epochal.declarations.windows import GridWindows, Windowing, cumulative, sliding, tumbling, windowing
from epochal.operators.windows.panes import pane_table
from epochal.operators.windows.work import WINDOW, WindowAggregateWork
from epochal.tasks.windows import assigned, late_before, pane_starts, timestamps
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

WINDOWS = {
    "tumbling": (tumbling("1 hour"), MINUTE),
    "tumbling by six": (tumbling("1 day", offset="6 hours"), HOUR),
    "days of a zone": (tumbling("1 day", zone="Europe/Berlin"), HOUR),
    "sliding": (sliding("1 hour", "5 minutes"), MINUTE),
    "uneven": (sliding("10 minutes", "4 minutes", offset="-1 minute"), MINUTE // 2),
    "the last days of a zone": (sliding("5 days", "2 days", zone="Europe/Berlin"), 2 * HOUR),
    "cumulative": (cumulative("1 hour", "10 minutes"), MINUTE),
    "so far this week": (cumulative("1 week", "1 day", zone="Europe/Berlin"), 2 * HOUR),
}


@dataclass
class Loop:
    """Windows by definition: each holds its rows, and is removed when it closes."""

    windows: GridWindows
    lateness: int
    open: dict[Window, list[int]] = field(default_factory=dict)

    def epoch(self, rows: list[Event], marks: Watermarks) -> tuple[dict[Window, Any], dict[Window, Any], int]:
        """Closing windows, windows with new rows, and the number of rows that were late for all of their windows."""
        changed: set[Window] = set()
        late = 0
        for key, time, value in rows:
            found = assigned(self.windows, np.array([time]))
            mine = [
                (key, start, end)
                for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True)
                if end + self.lateness > marks.late
            ]
            late += not mine
            for window in mine:
                self.open.setdefault(window, []).append(value)
            changed.update(mine)
        updates = {window: summary(self.open[window]) for window in changed}
        closing = [window for window in self.open if window[2] + self.lateness <= marks.fire]
        return {window: summary(self.open.pop(window)) for window in closing}, updates, late


def partials(windows: GridWindows, rows: list[Event], time: str) -> list[dict[str, Any]]:
    """Spark's aggregates of an epoch's rows: one row for each key and pane."""
    by_pane: dict[Any, list[int]] = {}
    for key, at, value in rows:
        by_pane.setdefault((key, int(pane_starts(windows, np.array([at]))[0])), []).append(value)
    return [
        {
            "route": key[0],
            "number": key[1],
            time: timestamps(np.array([start]))[0].as_py(),
            **dict(zip(VALUE, summary(values), strict=True)),
        }
        for (key, start), values in by_pane.items()
    ]


def operator(make_operator: Any, declared: Windowing, **more: Any) -> Any:
    windows = declared.windows
    assert isinstance(windows, GridWindows)
    table = pane_table(TABLE, windows, declared)
    assert table.time is not None
    row = pa.schema([column.to_arrow() for column in (*KEY, table.time, *PARTIALS)])
    output = pa.schema([column.to_arrow() for column in (*KEY, *WINDOW, *PARTIALS)])
    work = WindowAggregateWork(PLAN, table, windows, declared.allowed_lateness, declared.emit, more.pop("rows", 8))
    return make_operator(work, KEY, row, output, tables=(table,), **more)


@pytest.mark.parametrize("emit", ["final", "updates"])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.alternating(3)
def test_results_equal_a_loop_for_any_order_epochs_and_watermarks(
    make_operator: Any, name: str, emit: Any, run_seed: int
) -> None:
    windows, unit = WINDOWS[name]
    choose = random.Random(f"{name} {emit} {run_seed}")
    lateness = choose.choice([0, 7 * unit])
    declared = replace(windowing(windows, "0 seconds", emit), allowed_lateness=lateness)
    kind, batch_rows = choose.choice(["heap", "lmdb"]), choose.choice([1, 8, 1000])
    run = operator(make_operator, declared, kind=kind, rows=batch_rows, parallelism=2)
    loop = Loop(windows, lateness)
    for rows, marks in epochs(choose, events(choose, unit), delay=40 * unit):
        closed, updates, late = loop.epoch(rows, marks)
        run.watermarks = marks
        bound = late_before(windows, marks.late, lateness)
        timely = [row for row in rows if row[1] >= bound]
        assert len(rows) - len(timely) == late
        (table,) = run.tables
        slice = partials(windows, timely, table.time.name)
        if choose.random() < 0.2:
            run.attempt(slice)
        assert shown(run.run(slice)) == (closed if emit == "final" else updates)
        waiting = [due.event for due in run.dues]
        ends = [end + lateness for _, _, end in loop.open]
        assert min(waiting, default=None) == (min(ends, default=None) if emit == "final" else None)
    assert not loop.open


def test_the_generated_events_have_late_rows_and_long_windows(run_seed: int) -> None:
    late = open_between = 0
    for number in range(20):
        choose, loop = random.Random(f"{run_seed}-{number}"), Loop(tumbling("1 hour"), 0)
        for rows, marks in epochs(choose, events(choose, MINUTE), delay=40 * MINUTE):
            late += loop.epoch(rows, marks)[2]
            open_between += len(loop.open)
    assert late > 0 and open_between > 0


def test_a_window_that_opens_and_closes_in_one_epoch_is_never_written(make_operator: Any) -> None:
    windows = tumbling("1 hour")
    run = operator(make_operator, windowing(windows, "0 seconds", "final"))
    run.watermarks = Watermarks(late=START - DAY, fire=START + 3 * HOUR)
    rows: list[Event] = [(("JFK", 1), START + hour * HOUR, hour) for hour in range(5)]
    output = run.run(partials(windows, rows, "window_start"))
    assert len(output) == 3
    (table,) = run.tables
    assert len(run.state(table)) == 2
