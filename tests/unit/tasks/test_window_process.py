"""T2 of ``window(..).process``: calls compared with a loop for any order, epochs and watermarks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from epochal import KeyedProcess
from epochal.contracts.conditions import Watermarks
from epochal.declarations.intervals import MINUTE
from epochal.declarations.windows import (
    GridWindows,
    SessionWindows,
    Windowing,
    Windows,
    cumulative,
    session,
    sliding,
    tumbling,
    windowing,
)
from epochal.operators.windows import panes
from epochal.operators.windows.grid_rows import COUNT, DIGEST, GridWindowRows, pieces
from epochal.operators.windows.panes import pane_table, session_tables
from epochal.operators.windows.process_work import WindowProcessWork
from epochal.operators.windows.session_rows import ROWS, TIME, RowCounts, SessionWindowRows
from epochal.operators.windows.session_work import SessionAggregateWork
from epochal.operators.windows.work import WINDOW
from epochal.state.table import Column, StateKind, StateTable
from epochal.tasks.windows import assigned, pane_starts, timestamps
from tests.unit.tasks.window_events import KEY, Event, Window, epochs, events, micros

WINDOWS: dict[str, tuple[Windows, int]] = {
    "tumbling": (tumbling("1 hour"), MINUTE),
    "uneven": (sliding("10 minutes", "4 minutes", offset="-1 minute"), MINUTE // 2),
    "so far this week": (cumulative("1 week", "1 day", zone="Europe/Berlin"), 120 * MINUTE),
    "sessions": (session("20 minutes"), MINUTE),
    "long sessions": (session("2 hours"), MINUTE),
}
VALUES = (Column(name="at", type="timestamp"), Column(name="delay", type="int"))
OUTPUT = pa.schema([("route", pa.string()), ("number", pa.int32()), ("rows", pa.string())])


class AllRows(KeyedProcess):
    """Yields all rows of a window as one row."""

    output = "route string, number int, rows string"
    order_by = "delay"

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        assert all(key.window_start <= row.at < key.window_end for row in rows)
        yield key.route, key.number, ",".join(str(row.delay) for row in rows)


@dataclass
class Loop:
    windows: Windows
    lateness: int
    open: dict[Window, list[int]] = field(default_factory=dict)

    def epoch(self, rows: list[Event], marks: Watermarks) -> dict[Window, str]:
        for key, time, value in rows:
            if isinstance(self.windows, SessionWindows):
                self._join(key, time, value)
                continue
            found = assigned(self.windows, np.array([time]))
            for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
                if end + self.lateness > marks.late:
                    self.open.setdefault((key, start, end), []).append(value)
        past = self.lateness + isinstance(self.windows, SessionWindows)  # a row at its end extends a session
        closing = [window for window in self.open if window[2] + past <= marks.fire]
        return {window: ",".join(map(str, sorted(self.open.pop(window)))) for window in closing}

    def _join(self, key: Any, time: int, value: int) -> None:
        assert isinstance(self.windows, SessionWindows)
        start, end, values = time, time + self.windows.gap, [value]
        for other in [w for w in self.open if w[0] == key and w[1] <= end and start <= w[2]]:
            start, end = min(start, other[1]), max(end, other[2])
            values += self.open.pop(other)
        self.open[key, start, end] = values


def operator(make_operator: Any, declared: Windowing, batch_rows: int, **more: Any) -> Any:
    kept, time = rows_of(declared, batch_rows)
    row = pa.schema([*(column.to_arrow() for column in KEY), (time, pa.timestamp("us", "UTC"))])
    row = pa.schema([*row, *(column.to_arrow() for column in VALUES)])
    output = pa.schema([*OUTPUT, *(column.to_arrow() for column in WINDOW)])
    columns = tuple(column.name for column in (*KEY, *VALUES))
    work = WindowProcessWork(AllRows, columns, kept, ("delay",))
    tables = (kept.table,)
    if isinstance(kept, SessionWindowRows):
        tables += (kept.sessions.sessions, kept.sessions.entries)
    return make_operator(work, KEY, row, output, tables=tables, **more)


def rows_of(declared: Windowing, batch_rows: int) -> tuple[GridWindowRows | SessionWindowRows, str]:
    """The storage of rows, and the name of their time column in the task."""
    count, digest = Column(name=COUNT, type="bigint"), Column(name=DIGEST, type="binary")
    rows = StateTable(
        id="operator.rows", operator="operator", kind=StateKind.MAP, key=KEY, sub_key=(digest,), value=(*VALUES, count)
    )
    windows, lateness = declared.windows, declared.allowed_lateness
    if isinstance(windows, GridWindows):
        table = pane_table(rows, windows, declared)
        assert table.time is not None
        return GridWindowRows(table, windows, lateness, batch_rows), table.time.name
    table = rows.model_copy(update={"sub_key": (Column(name=TIME, type="timestamp"), digest)})
    counts = StateTable(
        id="operator.sessions",
        operator="operator",
        kind=StateKind.AGGREGATE,
        key=KEY,
        value=(Column(name=ROWS, type="bigint"),),
    )
    sessions, entries = session_tables(counts, declared)
    work = SessionAggregateWork(RowCounts(counts), sessions, entries, windows.gap, lateness, batch_rows)
    return SessionWindowRows(table, work, batch_rows), TIME


def as_rows(declared: Windowing, rows: list[Event]) -> list[dict[str, Any]]:
    micros = np.array([time for _, time, _ in rows], np.int64)
    times = timestamps(micros).to_pylist()
    grid = declared.windows if isinstance(declared.windows, GridWindows) else None
    name = TIME if grid is None else panes.pane_name(grid)
    starts = times if grid is None else timestamps(pane_starts(grid, micros)).to_pylist()
    return [
        {"route": key[0], "number": key[1], name: start, "at": time, "delay": value}
        for (key, _, value), time, start in zip(rows, times, starts, strict=True)
    ]


@pytest.mark.parametrize("name", WINDOWS)
def test_calls_equal_a_loop_for_any_order_epochs_and_watermarks(make_operator: Any, name: str, run_seed: int) -> None:
    windows, unit = WINDOWS[name]
    choose = random.Random(f"{name} {run_seed}")
    declared = replace(windowing(windows, "0 seconds", "final"), allowed_lateness=choose.choice([0, 7 * unit]))
    lateness, batch_rows = declared.allowed_lateness, choose.choice([1, 8, 1000])
    run = operator(make_operator, declared, batch_rows, kind=choose.choice(["heap", "lmdb"]), parallelism=2)
    loop = Loop(windows, lateness)
    # Few keys and times in whole minutes, so that some rows are equal.
    rounded = [(key, time // unit * unit, value % 3) for key, time, value in events(choose, unit, count=150)]
    for rows, marks in epochs(choose, rounded, delay=40 * unit):
        bound = panes.late_before(declared, marks.late)
        timely = [row for row in rows if row[1] >= bound]
        run.watermarks = marks
        if choose.random() < 0.2:
            run.attempt(as_rows(declared, timely))
        output = run.run(as_rows(declared, timely))
        found = {
            ((row["route"], row["number"]), micros(row["window_start"]), micros(row["window_end"])): row["rows"]
            for row in output
        }
        assert len(found) == len(output)
        assert found == loop.epoch(timely, marks)
        due = min((due.event for due in run.dues), default=None)
        ends = [end + lateness for _, _, end in loop.open]
        if isinstance(windows, GridWindows):
            assert due == min(ends, default=None)
        else:  # an entry may be earlier than the end of its session
            assert bool(due) == bool(ends) and (due is None or due <= min(ends) + 1)
    assert not loop.open
    if isinstance(windows, SessionWindows):
        assert not run.state(run.tables[0]), "rows of closed sessions are deleted"


def test_closed_windows_are_processed_in_batches() -> None:
    assert list(pieces(np.array([], np.int64), 8)) == []
    assert list(pieces(np.array([3, 100, 2, 2]), 8)) == [(0, 1), (1, 2), (2, 4)]
    assert list(pieces(np.array([1, 1, 1]), 8)) == [(0, 3)]
