"""Sessions that Spark aggregates by bucket, over epochs and a rescale, equal sessions of nested loops over all rows."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal import Pipeline, session
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.testing import Harness

GAP = 10_000_000
"""Microseconds."""
BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
NEAR = (-1, 0, 0, 1)
"""Distances from the bounds of buckets, in microseconds: rows a gap apart are in one session, and no further apart."""
AGGREGATES = {"rows": "count(*)", "total": "sum(number)", "mean": "avg(number)", "latest": "max_by(number, at)"}
Row = tuple[str, int, int]
"""Key, time, number."""


def pipeline() -> Pipeline:
    built = Pipeline("sessions")
    source = generator.source({"key": "cast(id AS string)", "at": "timestamp_seconds(id)", "number": "id"})
    rows = built.read("rows", source).with_watermark("at", "5 seconds")
    sessions = rows.key_by("key").window(session("10 seconds"), allowed_lateness="3 seconds")
    found = sessions.aggregate("sessions", **AGGREGATES)
    found.write("sessions", console.sink())
    found.late.write("late", console.sink())
    return built


def some_rows(choose: random.Random, bucket: int) -> list[Row]:
    """Rows about the bounds of buckets ``bucket`` to ``bucket + 3``, some at equal times, in any order."""
    times = [(bucket + choose.randrange(4)) * GAP + choose.choice(NEAR) for _ in range(choose.randrange(12))]
    times += [bucket * GAP + choose.randrange(3 * GAP) for _ in range(choose.randrange(4))]
    return [(choose.choice("abc"), time, choose.randrange(1_000)) for time in times]


def batch(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    """Sessions by nested loops. ``latest`` is not compared where times are equal: any of the numbers is right."""
    found = []
    for key in {row[0] for row in rows}:
        current: list[Row] = []
        for row in sorted(row for row in rows if row[0] == key):
            if current and row[1] > current[-1][1] + GAP:
                found.append(current)
                current = []
            current.append(row)
        found.append(current)
    return Counter(
        (each[0][0], each[0][1], each[-1][1] + GAP, len(each), sum(row[2] for row in each)) for each in found
    )


@pytest.mark.parametrize("seed", [1, 2, pytest.param(None, marks=pytest.mark.long)])
def test_sessions_by_bucket_equal_sessions_of_rows(spark: SparkSession, run_seed: int, seed: int | None) -> None:
    """Equal times, a gap exactly met and exceeded by a microsecond, times before 1970, late rows, a rescale."""
    choose = random.Random(run_seed if seed is None else seed)
    rows: list[Row] = []
    outputs: dict[str, list[dict[str, Any]]] = {"sessions": [], "late": []}
    configuration = Configuration(state_backend="heap", parallelism=2, max_parallelism=8)
    with Harness(pipeline(), spark, configuration) as test:
        for epoch in range(4):
            new = some_rows(choose, 2 * epoch - 6)
            rows += new
            collect(outputs, test.epoch(rows=[(key, at(time), number) for key, time, number in new]))
            if epoch == 1:
                test.restart(parallelism=choose.choice([1, 3]))
        collect(outputs, test.drain())
    late = Counter((row["key"], micros(row["at"]), row["number"]) for row in outputs["late"])
    assert sum(late.values()) == test.late.total
    on_time = list((Counter(rows) - late).elements())
    assert len(on_time) == len(rows) - sum(late.values())
    assert Counter(map(shown, outputs["sessions"])) == batch(on_time)
    numbers = {(key, time): {row[2] for row in on_time if row[:2] == (key, time)} for key, time, _ in on_time}
    for row in outputs["sessions"]:
        assert row["latest"] in numbers[row["key"], micros(row["window_end"]) - GAP]
        assert row["mean"] == pytest.approx(row["total"] / row["rows"])


def collect(outputs: dict[str, list[dict[str, Any]]], epoch: Any) -> None:
    for name, table in epoch.items():
        outputs[name] += table.to_pylist()


def at(time: int) -> datetime:
    return BEGIN + timedelta(microseconds=time)


def micros(time: datetime) -> int:
    return (time - BEGIN) // timedelta(microseconds=1)


def shown(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["key"], micros(row["window_start"]), micros(row["window_end"]), row["rows"], row["total"]
