"""T2 of ``window(..).process``: any order of rows, cuts and watermarks give the calls that a loop makes."""

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
from epochal.declarations.windowing import windowing
from epochal.declarations.windows import GridWindows, cumulative, sliding, tumbling
from epochal.operators.panes import WINDOW, pane_name, pane_table
from epochal.operators.window_process import WindowProcessWork
from epochal.state.table import Column, StateKind, StateTable
from epochal.tasks.window_rows import COUNT, DIGEST
from epochal.tasks.windows import assigned, late_before, pane_starts, timestamps
from tests.unit.tasks.window_events import KEY, Event, Window, epochs, events, micros

WINDOWS = {
    "tumbling": (tumbling("1 hour"), MINUTE),
    "uneven": (sliding("10 minutes", "4 minutes", offset="-1 minute"), MINUTE // 2),
    "so far this week": (cumulative("1 week", "1 day", zone="Europe/Berlin"), 120 * MINUTE),
}
VALUES = (Column(name="at", type="timestamp"), Column(name="delay", type="int"))
OUTPUT = pa.schema([("route", pa.string()), ("number", pa.int32()), ("rows", pa.string())])


class AllRows(KeyedProcess):
    """All rows of a window in one."""

    output = "route string, number int, rows string"
    order_by = "delay"

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        assert all(key.window_start <= row.at < key.window_end for row in rows)
        yield key.route, key.number, ",".join(str(row.delay) for row in rows)


@dataclass
class Loop:
    windows: GridWindows
    lateness: int
    open: dict[Window, list[int]] = field(default_factory=dict)

    def epoch(self, rows: list[Event], marks: Watermarks) -> dict[Window, str]:
        for key, time, value in rows:
            found = assigned(self.windows, np.array([time]))
            for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
                if end + self.lateness > marks.late:
                    self.open.setdefault((key, start, end), []).append(value)
        closing = [window for window in self.open if window[2] + self.lateness <= marks.fire]
        return {window: ",".join(map(str, sorted(self.open.pop(window)))) for window in closing}


def operator(make_operator: Any, windows: GridWindows, lateness: int, batch_rows: int, **more: Any) -> Any:
    declared = replace(windowing(windows, "0 seconds", "final"), allowed_lateness=lateness)
    count = Column(name=COUNT, type="bigint")
    sub_key = (Column(name=DIGEST, type="binary"),)
    rows = StateTable(
        id="operator.rows", operator="operator", kind=StateKind.MAP, key=KEY, sub_key=sub_key, value=(*VALUES, count)
    )
    table = pane_table(rows, windows, declared)
    assert table.time is not None
    row = pa.schema([column.to_arrow() for column in (*KEY, table.time, *VALUES)])
    output = pa.schema([*OUTPUT, *(column.to_arrow() for column in WINDOW)])
    columns = tuple(column.name for column in (*KEY, *VALUES))
    work = WindowProcessWork(AllRows, columns, table, windows, lateness, ("delay",), batch_rows)
    return make_operator(work, KEY, row, output, tables=(table,), **more)


def as_rows(windows: GridWindows, rows: list[Event]) -> list[dict[str, Any]]:
    times = timestamps(np.array([time for _, time, _ in rows], np.int64)).to_pylist()
    panes = timestamps(pane_starts(windows, np.array([time for _, time, _ in rows], np.int64))).to_pylist()
    return [
        {"route": key[0], "number": key[1], pane_name(windows): pane, "at": time, "delay": value}
        for (key, _, value), time, pane in zip(rows, times, panes, strict=True)
    ]


@pytest.mark.parametrize("name", WINDOWS)
def test_any_order_cuts_and_watermarks_give_the_calls_of_a_loop(make_operator: Any, name: str, run_seed: int) -> None:
    windows, unit = WINDOWS[name]
    choose = random.Random(f"{name} {run_seed}")
    lateness, batch_rows = choose.choice([0, 7 * unit]), choose.choice([1, 8, 1000])
    kind = choose.choice(["heap", "lmdb"])
    run = operator(make_operator, windows, lateness, batch_rows, kind=kind, parallelism=2)
    loop = Loop(windows, lateness)
    # Times to the minute, of few keys: some rows are the same.
    rounded = [(key, time // unit * unit, value % 3) for key, time, value in events(choose, unit, count=150)]
    for rows, marks in epochs(choose, rounded, delay=40 * unit):
        bound = late_before(windows, marks.late, lateness)
        timely = as_rows(windows, [row for row in rows if row[1] >= bound])
        run.watermarks = marks
        if choose.random() < 0.2:
            run.attempt(timely)
        output = run.run(timely)
        found = {
            ((row["route"], row["number"]), micros(row["window_start"]), micros(row["window_end"])): row["rows"]
            for row in output
        }
        assert len(found) == len(output)
        assert found == loop.epoch([row for row in rows if row[1] >= bound], marks)
        ends = [end + lateness for _, _, end in loop.open]
        assert min((due.event for due in run.dues), default=None) == min(ends, default=None)
    assert not loop.open
