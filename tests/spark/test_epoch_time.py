"""``epoch_time()`` in SQL text, expressions and functions over DataFrames: one time per epoch, also in retries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline, epoch_time
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.errors import PipelineError
from epochal.pipeline.analysis import analyse
from epochal.testing import Harness

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS = {"id": "id", "ts": "timestamp_seconds(id)"}


def in_sql(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.sql("SELECT id, EPOCH_TIME ( ) AS sql FROM {frame}", frame=frame)


def in_columns(frame: DataFrame) -> DataFrame:
    return frame.withColumns({"column": epoch_time(), "hour": F.date_trunc("hour", epoch_time())})


@pytest.mark.alternating(2)
def test_epoch_time_is_the_time_of_the_epoch_in_every_expression(spark: SparkSession) -> None:
    pipeline = Pipeline("times")
    events = pipeline.read("events", generator.source(ROWS))
    past = events.where("ts < epoch_time() - INTERVAL 1 HOUR")
    past.select("id", "epoch_time() AS text", epoch_time().alias("expression")).write("verbs", console.sink())
    events.transform(in_sql).transform(in_columns).write("functions", console.sink())
    ages = events.with_columns(age="unix_micros(epoch_time()) - unix_micros(ts)").key_by("id")
    ages.aggregate("ages", age="max(age)", recent="count_if(ts >= epoch_time() - INTERVAL 1 HOUR)").write(
        "ages", console.sink()
    )
    analyse(pipeline.graph(), spark)
    assert not spark.catalog.functionExists("epoch_time")  # the author's session stays unchanged

    with Harness(pipeline, spark) as test:
        for hour in (0, 1):  # the second epoch uses cached columns and plans
            at = NOON + timedelta(hours=hour, minutes=30)
            shown = test.epoch(at=at, events=[(1, NOON - timedelta(minutes=10)), (2, NOON + timedelta(hours=1))])
            assert shown["verbs"].to_pylist() == ([] if hour == 0 else [{"id": 1, "text": at, "expression": at}])
            assert [(row["sql"], row["column"]) for row in shown["functions"].to_pylist()] == [(at, at)] * 2
            assert {row["hour"] for row in shown["functions"].to_pylist()} == {NOON + timedelta(hours=hour)}
            by_id = {row["id"]: row for row in shown["ages"].to_pylist()}
            assert by_id[1]["age"] == (hour * 60 + 40) * 60_000_000
            assert by_id[1]["recent"] == 1 and by_id[2]["recent"] == hour + 1
        test.restart(parallelism=1)
        at = NOON + timedelta(hours=3)
        assert test.epoch(at=at, events=[(1, NOON)])["verbs"]["text"].to_pylist() == [at]


def test_function_is_defined_only_if_it_is_used(spark: SparkSession) -> None:
    pipeline = Pipeline("without")
    pipeline.read("events", generator.source(ROWS)).select("id AS epoch_time").write("out", console.sink())
    with Harness(pipeline, spark) as test:
        test.epoch(events=[(1, NOON)])
        assert not test.spark.catalog.functionExists("epoch_time")


@pytest.mark.parametrize("clock", ["current_timestamp()", "now()", "current_date()", "CURRENT_TIMESTAMP"])
def test_clock_functions_are_refused_in_favour_of_epoch_time(spark: SparkSession, clock: str) -> None:
    pipeline = Pipeline("clocks")
    events = pipeline.read("events", generator.source(ROWS)).with_columns(at=clock)
    events.key_by("id").aggregate("last", at="max(at)").write("out", console.sink())
    with pytest.raises(PipelineError, match=r"use epoch_time\(\), which is the same in each retry"):
        analyse(pipeline.graph(), spark)


def test_epoch_time_over_retracted_rows_is_refused(spark: SparkSession) -> None:
    pipeline = Pipeline("changes")
    events = pipeline.read("events", generator.source(ROWS))
    newest = events.key_by("id").aggregate("newest", ts="max(ts)", changes=True)
    old = newest.where("ts < epoch_time() - INTERVAL 1 DAY")
    old.key_by("ts").aggregate("old", n="count(*)").write("out", console.sink())
    with pytest.raises(PipelineError, match="retracts other rows than it returned"):
        analyse(pipeline.graph(), spark)
