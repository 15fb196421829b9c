"""Windowed results over many epochs equal Spark's ``window`` and ``session_window`` over all rows."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from epochal import Pipeline, cumulative, session, sliding, tumbling
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.engine import operator_subtasks
from epochal.testing import Harness

BEGIN = datetime(2024, 3, 30, 12, tzinfo=UTC)
COLUMNS = {"key": "cast(id AS string)", "at": "timestamp_seconds(id)", "number": "id"}
WINDOWS = {
    "tumbling": tumbling("1 hour", offset="10 minutes"),
    "sliding": sliding("1 hour", "5 minutes"),
    "uneven": sliding("25 minutes", "10 minutes"),
    "sessions": session("7 minutes"),
    "so far": cumulative("1 hour", "20 minutes"),
    "days": tumbling("1 day", zone="Europe/Berlin"),
}
AGGREGATES = {"rows": "count(*)", "total": "sum(number)", "mean": "avg(number)", "latest": "max_by(number, at)"}


def pipeline() -> Pipeline:
    built = Pipeline("windows")
    rows = built.read("rows", generator.source(COLUMNS)).with_watermark("at", "20 minutes")
    for name, windows in WINDOWS.items():
        operator = name.replace(" ", "_")
        windowed = rows.key_by("key").window(windows).aggregate(operator, **AGGREGATES)
        windowed.write(operator, console.sink())
        if name == "uneven":
            hours = windowed.key_by("key").window(tumbling("1 hour")).aggregate("hours", rows="sum(rows)")
            days = hours.key_by("key").window(tumbling("1 day")).aggregate("chained", rows="sum(rows)")
            days.write("chained", console.sink())
    updates = rows.key_by("key").window(WINDOWS["sliding"], emit="updates").aggregate("updates", **AGGREGATES)
    updates.write("updates", console.sink())
    return built


def some_rows(choose: random.Random) -> list[dict[str, Any]]:
    """Two days of rows, each up to 20 minutes out of order. No two rows of a key have the same time."""
    times = {(choose.choice("abc"), choose.randrange(4 * 3600) * choose.choice([1, 1, 12])) for _ in range(400)}
    rows = [
        {"key": key, "at": BEGIN + timedelta(seconds=second), "number": number}
        for number, (key, second) in enumerate(sorted(times))
    ]
    return sorted(rows, key=lambda row: row["at"] + timedelta(seconds=choose.randrange(20 * 60)))


# Assignment by Spark: test_windows.py; evaluation: unit/tasks, end_to_end/test_nexmark.py
@pytest.mark.long
@pytest.mark.parametrize(("cuts", "combined"), [(1, False), (3, True)])
def test_windows_over_epochs_equal_windows_over_all_rows(
    spark: SparkSession, run_seed: int, cuts: int, combined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten operators in every epoch; tests/unit/property/test_event_time_chains.py has many cuts, without Spark.

    ``combined``: all epochs except the first aggregate rows before their shuffle."""
    if combined:
        monkeypatch.setattr(operator_subtasks, "FEWEST_ROWS", 0)
        monkeypatch.setattr(operator_subtasks, "ROWS_PER_GROUP", 0)
    choose = random.Random(run_seed)
    rows = some_rows(choose)
    bounds = [0, *sorted(choose.sample(range(1, len(rows)), cuts)), len(rows)]
    configuration = Configuration(state_backend="heap", parallelism=2, max_parallelism=8, epoch_interval_seconds=0)
    outputs: dict[str, list[dict[str, Any]]] = {}
    last = {"key": "z", "at": BEGIN + timedelta(days=9), "number": 0}
    with Harness(pipeline(), spark, configuration) as test:
        for first, end in pairwise(bounds):
            collect(outputs, test.epoch(rows=rows[first:end]))
        # This row advances the watermark, so that all other windows close.
        collect(outputs, test.epoch(rows=[last]))
        collect(outputs, test.epoch())
    frame = spark.createDataFrame([tuple(row.values()) for row in rows], "key string, at timestamp, number long")
    of_spark = {
        "tumbling": F.window("at", "1 hour", "1 hour", "10 minutes"),
        "sliding": F.window("at", "1 hour", "5 minutes"),
        "uneven": F.window("at", "25 minutes", "10 minutes"),
        "sessions": F.session_window("at", "7 minutes"),
    }
    for name, window in of_spark.items():
        assert Counter(map(tuple_of, outputs[name])) == batch(frame.groupBy("key", window.alias("window"))), name
    # Spark has no such windows. Each is composed of windows that Spark has.
    day = F.date_trunc("day", F.from_utc_timestamp("at", "Europe/Berlin"))
    ends = (F.to_utc_timestamp(day + F.expr(f"INTERVAL {n} DAYS"), "Europe/Berlin") for n in (0, 1))
    named = F.struct(*(bound.alias(name) for bound, name in zip(ends, ("start", "end"), strict=True)))
    assert Counter(map(tuple_of, outputs["days"])) == batch(frame.groupBy("key", named.alias("window")))
    parts = frame.withColumn("end", F.explode(F.expr("sequence(20, 60, 20)")))
    start = F.date_trunc("hour", "at")
    parts = parts.withColumn(
        "window",
        F.struct(start.alias("start"), F.expr("date_trunc('hour', at) + make_dt_interval(0, 0, end)").alias("end")),
    ).where("at < window.end")
    assert Counter(map(tuple_of, outputs["so_far"])) == batch(parts.groupBy("key", "window"))
    by_day = batch_frame(frame.groupBy("key", of_spark["uneven"].alias("window")))
    by_day = by_day.withColumn("at", F.expr("window.end - INTERVAL '0.000001' SECOND"))
    sums = by_day.groupBy("key", F.window("at", "1 day").alias("window")).agg(F.sum("rows").alias("rows"))
    chained = [(row["key"], round(row["window_start"].timestamp() * 1e6), row["rows"]) for row in outputs["chained"]]
    assert Counter(chained) == Counter(
        map(tuple, sums.selectExpr("key", "unix_micros(window.start)", "rows").collect())
    )
    newest = {(row["key"], row["window_start"]): row for row in outputs["updates"]}
    assert Counter(map(tuple_of, newest.values())) == Counter(map(tuple_of, outputs["sliding"]))


def collect(outputs: dict[str, list[dict[str, Any]]], epoch: Any) -> None:
    for name, table in epoch.items():
        rows = table.to_pylist()
        for row in rows:
            if "window_time" in row:
                assert row["window_time"] == row["window_end"] - timedelta(microseconds=1)
        outputs.setdefault(name, []).extend(row for row in rows if row["key"] != "z")


def tuple_of(row: Any) -> tuple[Any, ...]:
    times = (round(row[name].timestamp() * 1e6) for name in ("window_start", "window_end"))
    return (row["key"], *times, *(row[name] for name in AGGREGATES))


def batch_frame(grouped: Any) -> DataFrame:
    frame: DataFrame = grouped.agg(*(F.expr(text).alias(name) for name, text in AGGREGATES.items()))
    return frame


def batch(grouped: Any) -> Counter[tuple[Any, ...]]:
    shown = batch_frame(grouped).selectExpr("key", "unix_micros(window.start)", "unix_micros(window.end)", *AGGREGATES)
    return Counter(map(tuple, shown.collect()))
