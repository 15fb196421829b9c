"""Joins of streams, epoch by epoch, equal Spark's join of all rows."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal import Pipeline, Stream
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.testing import Harness

START = datetime(2026, 5, 1, tzinfo=UTC)
FAR = START + timedelta(days=2)
COLUMNS = {
    "left": "k string, n int, a_ts timestamp, a double",
    "right": "k string, b array<int>, n int, b_ts timestamp",
}
ON = "l.k = r.k AND l.n = r.n AND r.b_ts BETWEEN l.a_ts - INTERVAL 5 SECONDS AND l.a_ts + INTERVAL 10 SECONDS"
BATCH = {
    "full": "SELECT coalesce(l.k, r.k) AS k, coalesce(l.n, r.n) AS n, a_ts, a, b, b_ts FROM l FULL JOIN r",
    "left_semi": "SELECT k, n, a_ts, a FROM l LEFT SEMI JOIN r",
    "left_anti": "SELECT k, n, a_ts, a FROM l LEFT ANTI JOIN r",
}


@pytest.mark.alternating(3)
def test_interval_joins_equal_sparks_joins(spark: SparkSession, run_seed: int) -> None:
    choose = random.Random(run_seed)
    with Harness(pipeline(), spark, Configuration(parallelism=2, max_parallelism=8, epoch_interval_seconds=0)) as test:
        found: dict[str, Counter[Any]] = {how: Counter() for how in BATCH}
        rows: dict[str, list[tuple[Any, ...]]] = {"left": [], "right": []}
        for _ in range(3):
            new = {"left": left_rows(choose), "right": right_rows(choose)}
            rows = {side: [*rows[side], *new[side]] for side in rows}
            count(found, test.epoch(**new))
        # These rows advance the watermark past all others, and join no row.
        count(found, test.epoch(left=[("far", 0, FAR, None)], right=[("away", None, 0, FAR)]))
        count(found, test.epoch())
    for side, name in (("left", "l"), ("right", "r")):
        spark.createDataFrame(rows[side], COLUMNS[side]).createOrReplaceTempView(name)
    for how, query in BATCH.items():
        batch = Counter(map(comparable, spark.sql(f"{query} ON {ON}").toArrow().to_pylist()))
        assert found[how] == batch, how


def pipeline() -> Pipeline:
    pipeline = Pipeline("joins")

    def stream(name: str, time: str, **columns: str) -> Stream:
        return pipeline.read(name, generator.source(columns)).with_watermark(time, "1 hour")

    at = "timestamp_seconds(id)"
    k, n = "nullif(string(id), '')", "nullif(int(id), -1)"
    left = stream("left", "a_ts", k=k, n=n, a_ts=at, a="nullif(double(id), -1.0D)")
    right = stream("right", "b_ts", k=k, b="nullif(array(1), array(2))", n=n, b_ts=at)
    for how in BATCH:
        joined = left.join(right, on=["k", "n"], within=("-5 seconds", "10 seconds"), how=how, name=how)  # type: ignore[arg-type]
        joined.write(how, console.sink())
    return pipeline


def left_rows(choose: random.Random) -> list[tuple[Any, ...]]:
    return [(*key(choose), time(choose), choose.choice([None, 0.5, 1.5])) for _ in range(40)]


def right_rows(choose: random.Random) -> list[tuple[Any, ...]]:
    keys = [key(choose) for _ in range(40)]
    return [(k, choose.choice([None, [], [1, 2]]), n, time(choose)) for k, n in keys]


def key(choose: random.Random) -> tuple[str | None, int | None]:
    return choose.choice([None, "x", "y"]), choose.choice([None, 1, 2, 3])


def time(choose: random.Random) -> datetime:
    return START + timedelta(seconds=choose.randrange(60))


def count(found: dict[str, Counter[Any]], outputs: dict[str, Any]) -> None:
    for how, rows in found.items():
        rows.update(map(comparable, outputs[how].to_pylist()))


def comparable(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(str(value) if name == "b" else value for name, value in row.items())
