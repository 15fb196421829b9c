"""Operators after windows: windows of windows, joins with window results, duplicates and top rows among them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal import KeyedProcess, Pipeline, session, tumbling
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.errors import PipelineError, SchemaError
from epochal.testing import Harness

BEGIN = datetime(2024, 3, 30, 12, tzinfo=UTC)
COLUMNS = {"key": "cast(id AS string)", "at": "timestamp_seconds(id)", "number": "id"}
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
Row = dict[str, Any]


class Hours(KeyedProcess):
    """The inner windows of an outer window, and the sum of their counts."""

    output = "key string, starts string, n bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        assert all(key.window_start <= row.window_time < key.window_end for row in rows)
        assert all(row.window_time == row.window_end - MICROSECOND for row in rows)
        yield key.key, " ".join(f"{row.window_start:%H}" for row in rows), sum(row.n for row in rows)


class Sums(KeyedProcess):
    output = "key string, n bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        yield key.key, sum(row.n for row in rows)


def pipeline() -> Pipeline:
    built = Pipeline("chained")
    rows = built.read("rows", generator.source(COLUMNS)).with_watermark("at", "20 minutes")
    hours = rows.key_by("KEY").window(tumbling("1 hour")).aggregate("hours", n="count(*)")
    hours = hours.select("KEY AS key", "n", "window_start", "window_end", "window_time")
    days = hours.key_by("key").window(tumbling("1 day")).process(Hours, "days")
    weeks = days.key_by("key").window(tumbling("4 days")).process(Sums, "weeks")
    bursts = hours.key_by("key").window(session("90 minutes")).process(Hours, "bursts")
    busiest = hours.drop("window_start", "window_end").top(3, by="n", within=tumbling("1 day"))
    near = rows.join(hours, on="key", within=("0 seconds", "1 hour"), name="near")
    latest = hours.select("key", "n AS before", "window_time").latest("key", order_by="window_time")
    as_of = rows.join(latest, on="key", as_of="at", how="left", name="as_of")
    first = hours.drop_duplicates("key", within="3 hours")
    outputs = {"hours": hours, "days": days, "weeks": weeks, "bursts": bursts, "busiest": busiest}
    for name, stream in (outputs | {"near": near, "as_of": as_of, "first": first}).items():
        stream.write(name, console.sink())
    return built


@pytest.mark.long  # without Spark: test_event_time_chains.py; on Spark: tests/spark/test_end_of_input.py
def test_operators_after_windows_equal_batch_over_the_window_results(spark: SparkSession, run_seed: int) -> None:
    choose = random.Random(run_seed)
    times = sorted({(choose.choice("abc"), choose.randrange(2 * 24 * 60)) for _ in range(160)})
    rows = [{"key": key, "at": BEGIN + timedelta(minutes=minute), "number": n} for n, (key, minute) in enumerate(times)]
    rows.sort(key=lambda row: row["at"] + timedelta(minutes=choose.randrange(20)))
    last = {"key": "z", "at": BEGIN + timedelta(days=30), "number": -1}
    cuts = [0, *sorted(choose.sample(range(1, len(rows)), 3)), len(rows)]
    configuration = Configuration(state_backend="heap", parallelism=2, max_parallelism=8, epoch_interval_seconds=0)
    found: dict[str, list[Row]] = defaultdict(list)
    with Harness(pipeline(), spark, configuration) as test:
        for batch in (*(rows[first:end] for first, end in pairwise(cuts)), [last], []):
            for name, table in test.epoch(rows=batch).items():
                found[name] += [row for row in table.to_pylist() if row.get("key") != "z"]
        assert test.counts.late_rows == {} or not any(test.counts.late_rows.values())
    hours = found["hours"]
    assert Counter((row["key"], row["window_start"]) for row in hours for _ in range(row["n"])) == Counter(
        (row["key"], row["at"].replace(minute=0)) for row in rows
    )
    assert shown(found["days"], "starts", "n") == in_groups(hours, lambda row: midnight(row["window_time"]), DAY)
    sums: Counter[Any] = Counter()
    for row in found["days"]:
        sums[row["key"], fourth_day(row["window_time"])] += row["n"]
    assert {(row["key"], row["window_start"]): row["n"] for row in found["weeks"]} == sums
    assert sum(row["n"] for row in found["bursts"]) == len(rows)
    assert {(row["key"], row["window_start"]) for row in found["bursts"]} == set(begins(hours))
    ranked = defaultdict(list)
    for row in sorted(found["busiest"], key=lambda row: row["rank"]):
        ranked[row["window_start"]].append(row["n"])
    by_day = defaultdict(list)
    for row in hours:
        by_day[midnight(row["window_time"])].append(row["n"])
    assert ranked == {day: sorted(counts, reverse=True)[:3] for day, counts in by_day.items()}
    assert Counter((row["number"], row["window_start"]) for row in found["near"]) == Counter(
        (row["number"], hour["window_start"])
        for row in rows
        for hour in hours
        if row["key"] == hour["key"] and timedelta(0) <= hour["window_time"] - row["at"] <= HOUR
    )
    assert {row["number"]: row["before"] for row in found["as_of"]} == {
        row["number"]: newest(hours, row) for row in rows
    }
    assert Counter((row["key"], row["window_start"]) for row in found["first"]) == Counter(firsts(hours))


def shown(rows: list[Row], *columns: str) -> dict[Any, Any]:
    found = {(row["key"], row["window_start"]): tuple(row[name] for name in columns) for row in rows}
    assert len(found) == len(rows)
    return found


def in_groups(hours: list[Row], start: Any, size: timedelta) -> dict[Any, Any]:
    groups = defaultdict(list)
    for row in sorted(hours, key=lambda row: row["window_time"]):
        groups[row["key"], start(row)].append(row)
    return {
        group: (" ".join(f"{row['window_start']:%H}" for row in rows), sum(row["n"] for row in rows))
        for group, rows in groups.items()
    }


def midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def fourth_day(at: datetime) -> datetime:
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return at - since % timedelta(days=4)


def begins(hours: list[Row]) -> Iterator[Any]:
    """Starts of bursts of hours, whose times are at most 90 minutes apart."""
    last: dict[str, datetime] = {}
    for row in sorted(hours, key=lambda row: row["window_time"]):
        before = last.get(row["key"])
        if before is None or row["window_time"] - before > timedelta(minutes=90):
            yield row["key"], row["window_time"]
        last[row["key"]] = row["window_time"]


def newest(hours: list[Row], row: Row) -> int | None:
    before = [hour for hour in hours if hour["key"] == row["key"] and hour["window_time"] <= row["at"]]
    return max(before, key=lambda hour: hour["window_time"])["n"] if before else None


def firsts(hours: list[Row]) -> Iterator[Any]:
    until: dict[str, datetime] = {}
    for row in sorted(hours, key=lambda row: row["window_time"]):
        if row["key"] not in until or row["window_time"] >= until[row["key"]]:
            until[row["key"]] = row["window_time"] + 3 * HOUR
            yield row["key"], row["window_start"]


@pytest.mark.parametrize(
    ("columns", "key", "by", "message"),
    [
        (("*",), "key", "n", "has a column 'window_start', but top() adds a column with this name"),
        (("key", "n AS rank", "window_time"), "key", "rank", "has a column 'rank'"),
        (("key AS rank", "n", "window_time"), "rank", "n", "has a column 'rank'"),
        (("key", "n", "window_time"), "key", "key", "a key column"),
        (("key", "n", "window_time"), "key", "window_time", "window_time"),
        (("key", "array(n) AS many", "window_time"), "key", "many", "a nested column"),
        (("key", "n", "NULL AS nothing", "window_time"), "key", "n", "The column 'nothing' of state 'top'"),
    ],
)
def test_invalid_top_of_window_results_is_refused(
    spark: SparkSession, columns: Any, key: str, by: str, message: str
) -> None:
    built = Pipeline("top")
    rows = built.read("rows", generator.source(COLUMNS)).with_watermark("at", "20 minutes")
    hours = rows.key_by("key").window(tumbling("1 hour")).aggregate("hours", n="count(*)").select(*columns)
    hours.key_by(key).top(3, by=by, within=tumbling("1 day")).write("out", console.sink())
    with pytest.raises((PipelineError, SchemaError), match="'top'") as refused:
        Harness(built, spark).__enter__()
    assert message in refused.value.message


class LastOfMany(KeyedProcess):
    output = "n int"
    order_by = "many"

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[Any]: ...


@pytest.mark.parametrize(
    ("many", "message"), [("array(number)", "column 'many' cannot be sorted by"), (None, "there is no column 'many'")]
)
def test_invalid_order_of_window_rows_is_refused(spark: SparkSession, many: str | None, message: str) -> None:
    built = Pipeline("order")
    rows = built.read("rows", generator.source(COLUMNS)).with_watermark("at", "20 minutes")
    rows = rows if many is None else rows.with_column("many", many)
    rows.key_by("key").window(tumbling("1 hour")).process(LastOfMany).write("out", console.sink())
    with pytest.raises(PipelineError, match="Operator 'last_of_many', order_by") as refused:
        Harness(built, spark).__enter__()
    assert message in refused.value.message
