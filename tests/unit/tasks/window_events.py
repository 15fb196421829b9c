"""Rows, watermarks and aggregates for the tests of windowed operators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from epochal.aggregates.built_in import BUILT_IN
from epochal.aggregates.plan import AggregationPlan, Part
from epochal.contracts.conditions import BEGINNING, END, Watermarks
from epochal.state.table import Column, StateKind, StateTable

KEY = (Column(name="route", type="string"), Column(name="number", type="int"))
VALUE = {"flights": "bigint", "total": "bigint", "worst": "int"}
PARTIALS = tuple(Column(name=name, type=type) for name, type in VALUE.items())
TABLE = StateTable(id="operator", operator="operator", kind=StateKind.AGGREGATE, key=KEY, value=PARTIALS)
PLAN = AggregationPlan(
    operator="operator",
    table=TABLE,
    parts=tuple(
        Part(column=name, aggregate=aggregate, partials=aggregate.partials(), state_columns=(name,))
        for name, aggregate in {
            "flights": BUILT_IN["count"]("*"),
            "total": BUILT_IN["sum"]("delay"),
            "worst": BUILT_IN["max"]("delay"),
        }.items()
    ),
    columns=(),
)
START = 1_711_800_000_000_000  # 2024-03-30: the clocks of Berlin go forward on the next day
Event = tuple[tuple[str | None, int], int, int]
"""Key, event time, delay."""
Window = tuple[tuple[str | None, int], int, int]


def summary(values: list[int]) -> tuple[int, int, int]:
    return len(values), sum(values), max(values)


def events(choose: random.Random, unit: int, count: int = 120, spread: int = 40) -> list[Event]:
    """Rows over about five times 60 units, most of them up to ``spread`` units out of order."""
    times = [START + choose.randrange(300 * unit) for _ in range(count)]
    order = sorted(times, key=lambda time: time + choose.randrange(spread * unit) * choose.choice([1, 1, 1, 4]))
    keys = [None, "JFK", "LAX", "\x00", ""]
    return [((choose.choice(keys), choose.randrange(2)), time, choose.randrange(-9, 90)) for time in order]


def epochs(choose: random.Random, rows: list[Event], delay: int) -> Iterator[tuple[list[Event], Watermarks]]:
    """The rows in random epochs, each with the watermarks of the previous rows; the last epoch closes all windows."""
    cuts = [0, *sorted(choose.choices(range(len(rows) + 1), k=choose.randrange(1, 9))), len(rows)]
    late = fire = latest = BEGINNING
    for first, end in pairwise(cuts):
        late, fire = fire, max(fire, latest - delay) if latest > BEGINNING else fire
        yield rows[first:end], Watermarks(late=late, fire=fire)
        latest = max([latest, *(time for _, time, _ in rows[first:end])])
    yield [], Watermarks(late=fire, fire=max(fire, latest - delay))
    yield [], Watermarks(late=max(fire, latest - delay), fire=END)


def shown(output: list[dict[str, Any]]) -> dict[Window, Any]:
    found: dict[Window, Any] = {}
    for row in output:
        start, end = (pa.scalar(row[name], pa.timestamp("us", "UTC")).value for name in ("window_start", "window_end"))
        window = ((row["route"], row["number"]), start, end)
        assert window not in found, "a window was emitted twice in an epoch"
        found[window] = tuple(row[name] for name in VALUE)
    return found


def micros(time: Any) -> int:
    """A datetime as microseconds from the Unix epoch."""
    found: int = pa.scalar(time, pa.timestamp("us", "UTC")).value
    return found
