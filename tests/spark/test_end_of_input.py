"""The end of the input through the engine on Spark: one last epoch outputs everything that waits.

Marked long: tests/simulation covers it without Spark at every step in each run, and a notebook does so on Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal import KeyedProcess, Pipeline
from epochal.connectors import console, generator
from epochal.declarations.windows import session, sliding, tumbling
from epochal.errors import InvalidInput
from epochal.testing import Harness

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COLUMNS = {"id": "id", "user": "cast(id AS string)", "ts": "timestamp_seconds(id)"}
OTHERS = {"other": "id", "user": "cast(id AS string)", "their_ts": "timestamp_seconds(id)"}


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


class Alarms(KeyedProcess):
    """Two event-time timers, the second set by the first, and one processing-time timer."""

    output = "user string, what string"

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            ctx.timer(row.ts + timedelta(hours=1), name="first")
            ctx.processing_timer(row.ts + timedelta(hours=1))

    def on_timer(self, key: Any, at: datetime, ctx: Any) -> Iterator[Any]:
        ctx.timer(at + timedelta(hours=1), name="second")
        yield key.user, ctx.timer_name


@pytest.fixture
def test(spark: SparkSession) -> Iterator[Harness]:
    """A chain of two windows with allowed lateness, and every other operator that waits for event time."""
    pipeline = Pipeline("everything-that-waits")
    events = pipeline.read("events", generator.source(COLUMNS)).with_watermark("ts", "10 seconds", idle_after="1 hour")
    others = pipeline.read("others", generator.source(OTHERS)).with_watermark("their_ts", "0 seconds")
    minutes = (
        events.key_by("user")
        .window(tumbling("1 minute"), allowed_lateness="5 minutes")
        .aggregate("per_minute", n="count(*)")
    )
    minutes.write("minutes", console.sink())
    hours = minutes.with_columns(closed_at="window_end - INTERVAL 1 MICROSECOND").key_by("user")
    hours.window(sliding("2 hours", "1 hour")).aggregate("per_hour", minutes="count(*)").write("hours", console.sink())
    by_user = events.key_by("user")
    by_user.window(session("10 minutes")).aggregate("per_visit", n="count(*)").write("visits", console.sink())
    joined = events.join(others, on="user", within=("0 seconds", "1 hour"), how="left")
    joined.select("id", "other").write("joined", console.sink())
    by_user.process(Alarms).write("alarms", console.sink())
    with Harness(pipeline, spark) as harness:
        yield harness


def shown(table: Any, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[column] for column in columns) for row in table.to_pylist()), key=str)


@pytest.mark.long
def test_drain_outputs_all_windows_joins_and_timers(test: Harness) -> None:
    out = test.epoch(at=at(0), events=[(1, "ann", at(0)), (2, "ann", at(61)), (3, "bob", at(5))])
    assert all(table.num_rows == 0 for table in out.values())
    test.epoch(others=[(9, "ann", at(30))])
    test.restart(parallelism=3)
    out = test.drain(at=at(60))
    assert shown(out["minutes"], "user", "window_start", "n") == [
        ("ann", NOON, 1),
        ("ann", at(60), 1),
        ("bob", NOON, 1),
    ]
    hour = timedelta(hours=1)
    assert shown(out["hours"], "user", "window_start", "minutes") == [
        *[("ann", start, 2) for start in (NOON - hour, NOON)],
        *[("bob", start, 1) for start in (NOON - hour, NOON)],
    ]
    assert shown(out["visits"], "user", "n") == [("ann", 2), ("bob", 1)]
    assert shown(out["joined"], "id", "other") == [(2, None), (3, None)]  # event 1 was joined earlier
    assert shown(out["alarms"], "user", "what") == [("ann", "first"), ("ann", "first"), ("bob", "first")]
    assert test.counts.dropped_timers == {"alarms": 3 + 3}
    assert test.counts.late_rows == {}
    assert test.state("per_minute").num_rows == 0
    for action in (lambda: test.epoch(events=[]), lambda: test.advance(watermark=at(0)), test.drain):
        with pytest.raises(InvalidInput, match="The input has ended"):
            action()
    test.restart()
    with pytest.raises(InvalidInput, match="The input has ended"):
        test.epoch()
