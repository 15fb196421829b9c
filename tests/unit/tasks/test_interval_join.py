"""T2 of the interval join, against nested loops over all rows."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from epochal.contracts.conditions import END, microseconds
from epochal.operators.joins.interval_plan import IntervalJoinOperator
from tests.unit.tasks.joined import TIMESTAMP, make_join

LEFT = pa.schema([("id", pa.string()), ("a_ts", TIMESTAMP), ("a", pa.float64())])
RIGHT = pa.schema([("id", pa.string()), ("b", pa.list_(pa.int32())), ("b_ts", TIMESTAMP)])
KEYS = (None, "x", "y", "z")
HOWS = ("inner", "left", "right", "full", "left_semi", "left_anti")


def operator(how: str, low: int, high: int) -> IntervalJoinOperator:
    return IntervalJoinOperator("join", ("id",), low, high, how, ("a_ts", "b_ts"), True)  # type: ignore[arg-type]


def left_row(key: str | None, time: int, value: float | None) -> dict[str, Any]:
    return {"id": key, "a_ts": time, "a": value}


def right_row(key: str | None, time: int, value: list[int] | None) -> dict[str, Any]:
    return {"id": key, "b": value, "b_ts": time}


def micros(row: dict[str, Any]) -> dict[str, Any]:
    """The rows with times in microseconds."""
    return {name: microseconds(value) if isinstance(value, datetime) else value for name, value in row.items()}


def plain(row: dict[str, Any]) -> tuple[Any, ...]:
    """The row in hashable form."""
    return tuple(str(value) if name == "b" else value for name, value in micros(row).items())


def by_loops(how: str, low: int, high: int, left: list[dict[str, Any]], right: list[dict[str, Any]]) -> Counter[Any]:
    """The result of SQL: ``b.id = a.id AND b.b_ts BETWEEN a.a_ts + low AND a.a_ts + high``."""
    found: Counter[Any] = Counter()

    def partners(one: dict[str, Any], others: list[dict[str, Any]], low: int, high: int, own: str, theirs: str) -> Any:
        return [
            other
            for other in others
            if one["id"] is not None and other["id"] == one["id"] and low <= other[theirs] - one[own] <= high
        ]

    for a in left:
        with_a = partners(a, right, low, high, "a_ts", "b_ts")
        if (how == "left_semi" and with_a) or (how == "left_anti" and not with_a):
            found[tuple(a.values())] += 1
        if "_" in how:
            continue
        for b in with_a:
            found[(a["id"], a["a_ts"], a["a"], str(b["b"]), b["b_ts"])] += 1
        if not with_a and how in ("left", "full"):
            found[(a["id"], a["a_ts"], a["a"], "None", None)] += 1
    if how in ("right", "full"):
        for b in right:
            if not partners(b, left, -high, -low, "b_ts", "a_ts"):
                found[(b["id"], None, None, str(b["b"]), b["b_ts"])] += 1
    return found


BOUNDS = ((-2, 3), (0, 0), (1, 4), (-4, -1))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.alternating(3)
def test_output_equals_nested_loops_for_any_division_into_epochs(
    make_operator: Any, how: str, bounds: tuple[int, int], run_seed: int
) -> None:
    choose = random.Random(f"{run_seed} {how} {bounds}")
    low, high = bounds
    declared, kind = operator(how, low, high), choose.choice(["heap", "lmdb"])
    join = make_join(make_operator, declared, LEFT, RIGHT, kind, parallelism=2)
    join.work = replace(join.work, output_rows=choose.choice([1, 3, 1 << 16]))  # type: ignore[type-var]
    every_left, every_right, found, fire = [], [], Counter(), 0
    for _ in range(6):
        # Rows are not late, and the watermark advances in steps that are as short as the bounds.
        left, right = (
            [
                (choose.choice(KEYS), fire + choose.randrange(4), choose.randrange(2))
                for _ in range(choose.randrange(14))
            ]
            for _ in range(2)
        )
        new_left = [left_row(key, time, (None, 1.5)[value]) for key, time, value in left]
        new_right = [right_row(key, time, (None, [1, 2])[value]) for key, time, value in right]
        late, fire = fire, fire + choose.randrange(3)
        out = join.take(new_left, new_right, fire)
        every_left += new_left
        every_right += new_right
        found.update(map(plain, out))
        times = [row[name] for row in map(micros, out) for name in ("a_ts", "b_ts") if row.get(name) is not None]
        assert not times or min(times) >= late - declared.hold
        assert all(at > fire for at in join.waits_for)
    out = join.take([], [], END)
    found.update(map(plain, out))
    assert found == by_loops(how, low, high, every_left, every_right)
    assert join.waits_for == [] and join.take([], []) == []


def test_a_row_with_many_matches_is_read_and_emitted_in_parts(make_operator: Any) -> None:
    join = make_join(make_operator, operator("inner", 0, 10), LEFT, RIGHT, parallelism=1, subtasks_of_task=1)
    join.work = replace(join.work, output_rows=7)  # type: ignore[type-var]
    join.take([], [right_row("x", time % 10, [time % 3]) for time in range(40)])
    (batches,) = join.batches(([left_row("x", 0, None)], [right_row("x", 3, [5])] * 9))  # type: ignore[arg-type]
    sizes = [batch.num_rows for batch in join.task()(iter(batches)) if batch.column("_handle").null_count]
    assert sum(sizes) == 49 and max(sizes) <= 7
