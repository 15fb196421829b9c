"""T2 of ``window(..).top``, compared with sorting each window for any order, epochs and watermarks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from epochal.contracts.conditions import Watermarks
from epochal.declarations.intervals import MINUTE
from epochal.declarations.windows import (
    GridWindows,
    SessionWindows,
    Windowing,
    Windows,
    session,
    sliding,
    tumbling,
    windowing,
)
from epochal.operators.top.plan import ROWS
from epochal.operators.top.work import RANK, BestRows, WindowTopWork
from epochal.operators.windows import panes
from epochal.operators.windows.work import WINDOW
from epochal.state.table import Column, StateKind, StateTable
from epochal.tasks.windows import assigned, pane_starts, timestamps
from tests.unit.tasks.window_events import KEY, START, Event, Window, epochs, events, micros

WINDOWS: dict[str, tuple[Windows, int]] = {
    "tumbling": (tumbling("1 hour"), MINUTE),
    "uneven": (sliding("10 minutes", "4 minutes", offset="-1 minute"), MINUTE // 2),
    "days": (tumbling("1 day", zone="Europe/Berlin"), 120 * MINUTE),
    "sessions": (session("20 minutes"), MINUTE),
}
ROW = "struct<at:timestamp,delay:int,tags:array<string>>"
BEST = Column(name=ROWS, type=f"array<{ROW}>")
TABLE = StateTable(id="operator", operator="operator", kind=StateKind.AGGREGATE, key=KEY, value=(BEST,))
COUNT = 3


@dataclass
class Loop:
    """The rows of open windows, by the definition of each."""

    windows: Windows
    lateness: int
    open: dict[Window, list[Any]] = field(default_factory=dict)

    def epoch(self, rows: list[Event], marks: Watermarks) -> dict[Window, Any]:
        for key, time, delay in rows:
            if isinstance(self.windows, SessionWindows):
                self._join(key, time, delay)
                continue
            found = assigned(self.windows, np.array([time]))
            for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
                if end + self.lateness > marks.late:
                    self.open.setdefault((key, start, end), []).append((delay, time))
        past = self.lateness + isinstance(self.windows, SessionWindows)  # a row at its end extends a session
        closing = [window for window in self.open if window[2] + past <= marks.fire]
        return {window: best(self.open.pop(window)) for window in closing}

    def _join(self, key: Any, time: int, delay: int) -> None:
        assert isinstance(self.windows, SessionWindows)
        start, end, rows = time, time + self.windows.gap, [(delay, time)]
        for other in [w for w in self.open if w[0] == key and w[1] <= end and start <= w[2]]:
            start, end = min(start, other[1]), max(end, other[2])
            rows += self.open.pop(other)
        self.open[key, start, end] = rows


def best(rows: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    ordered = sorted(rows, key=lambda row: (-row[0], row[1]))[:COUNT]
    return [(rank, delay, time) for rank, (delay, time) in enumerate(ordered, 1)]


def operator(make_operator: Any, declared: Windowing, batch_rows: int, **more: Any) -> Any:
    tables = panes.tables(declared, TABLE)
    pane = panes.pane_column(declared)
    rows = BestRows(TABLE, COUNT, ("delay",), True)
    windowed = replace(panes.merging_work(declared, rows, tables), batch_rows=batch_rows)
    row = pa.schema([*(column.to_arrow() for column in KEY), (pane, pa.timestamp("us", "UTC")), *rows.row])
    output = pa.schema([*(column.to_arrow() for column in (*KEY, *WINDOW, RANK)), *rows.row])
    work = WindowTopWork(rows, windowed, (*(column.name for column in KEY), pane))
    return make_operator(work, KEY, row, output, tables=tables, **more)


def as_rows(declared: Windowing, rows: list[Event]) -> list[dict[str, Any]]:
    micros = np.array([time for _, time, _ in rows], np.int64)
    times = timestamps(micros).to_pylist()
    grid = declared.windows if isinstance(declared.windows, GridWindows) else None
    starts = times if grid is None else timestamps(pane_starts(grid, micros)).to_pylist()
    return [
        {
            "route": key[0],
            "number": key[1],
            panes.pane_column(declared): pane,
            "at": time,
            "delay": delay,
            "tags": None if delay % 3 else [str(delay)],
        }
        for (key, _, delay), time, pane in zip(rows, times, starts, strict=True)
    ]


def shown(output: list[dict[str, Any]]) -> dict[Window, Any]:
    found: dict[Window, Any] = {}
    for row in output:
        assert row["tags"] == (None if row["delay"] % 3 else [str(row["delay"])])
        window = ((row["route"], row["number"]), micros(row["window_start"]), micros(row["window_end"]))
        found.setdefault(window, []).append((row["rank"], row["delay"], micros(row["at"])))
    return {window: sorted(rows) for window, rows in found.items()}


@pytest.mark.parametrize("name", WINDOWS)
def test_ranks_equal_those_of_all_rows_for_any_order_epochs_and_watermarks(
    make_operator: Any, name: str, run_seed: int
) -> None:
    windows, unit = WINDOWS[name]
    choose = random.Random(f"{name} {run_seed}")
    declared = replace(windowing(windows, "0 seconds", "final"), allowed_lateness=choose.choice([0, 7 * unit]))
    run = operator(
        make_operator, declared, choose.choice([1, 8, 1000]), kind=choose.choice(["heap", "lmdb"]), parallelism=2
    )
    loop = Loop(windows, declared.allowed_lateness)
    some = [(key, time, delay % 5) for key, time, delay in events(choose, unit, count=150)]
    for rows, marks in epochs(choose, some, delay=40 * unit):
        bound = panes.late_before(declared, marks.late)
        timely = [row for row in rows if row[1] >= bound]
        run.watermarks = marks
        if choose.random() < 0.2:
            run.attempt(as_rows(declared, timely))
        assert shown(run.run(as_rows(declared, timely))) == loop.epoch(timely, marks)
    assert not loop.open


def test_updates_emit_all_ranks_of_windows_with_new_rows(make_operator: Any) -> None:
    declared = windowing(tumbling("1 hour"), "0 seconds", "updates")
    run = operator(make_operator, declared, 8, parallelism=1)
    run.watermarks = Watermarks()
    hour, key = START // (60 * MINUTE) * 60 * MINUTE, ("JFK", 1)
    window = (key, hour, hour + 60 * MINUTE)
    assert shown(run.run(as_rows(declared, [(key, hour, 4), (key, hour + 1, 7)]))) == {
        window: [(1, 7, hour + 1), (2, 4, hour)]
    }
    found = shown(run.run(as_rows(declared, [(key, hour + 2, 9), (key, hour + 3, 1)])))
    assert found == {window: [(1, 9, hour + 2), (2, 7, hour + 1), (3, 4, hour)]}
    assert run.run([]) == []
    (rows,) = run.state(run.tables[0]).values()
    assert [row["delay"] for row in rows[0]] == [9, 7, 4]
