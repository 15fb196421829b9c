"""A sink that reads columns of an operator's task has the rows and the schema that Spark would pass to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal import Pipeline, session, tumbling
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.engine import spark_runner
from epochal.engine.straight_sinks import StraightSink, straight_sinks
from epochal.pipeline.stream import Stream
from epochal.testing import Harness

START = datetime(2026, 1, 1, tzinfo=UTC)
CONFIGURATION = Configuration(state_backend="heap", parallelism=2, max_parallelism=8, epoch_interval_seconds=0)
COLUMNS = {
    "key": "cast(id AS string)",
    "at": "timestamp_seconds(id)",
    "number": "id",
    "price": "cast(id AS decimal(10, 2))",
    "inner": "IF(id % 3 = 0, NULL, named_struct('Name', 'a', 'deep', IF(id = 4, NULL, named_struct('n', id))))",
}


def _rows(first: int, count: int) -> list[dict[str, Any]]:
    found = []
    for number in range(first, first + count):
        deep = None if number == 4 else {"n": number}
        inner = None if number % 3 == 0 else {"Name": f"name {number}", "deep": deep}
        at = START + timedelta(seconds=30 * number)
        found.append({"key": "ab"[number % 2], "at": at, "number": number, "price": Decimal(number), "inner": inner})
    return found


def _latest(rows: Stream) -> Stream:
    return rows.key_by("key").aggregate(
        "latest", rows="count(*)", last="max_by(inner, number)", most="max(price)", at="max(at)", mean="avg(number)"
    )


def _windows(rows: Stream) -> Stream:
    return rows.key_by("key").window(tumbling("2 minutes")).aggregate("windows", rows="count(*)", total="sum(price)")


STRAIGHT: dict[str, Callable[[Stream], Stream]] = {
    "an aggregate": lambda rows: rows.key_by("key").aggregate("sums", rows="count(*)", total="sum(number)"),
    "columns and fields": lambda rows: _latest(rows).select(
        "KEY", "last.deep.n", "last.Name AS name", F.col("most"), F.col("last.deep.n").alias("again"), "rows", "at"
    ),
    "several verbs": lambda rows: _latest(rows).select("*").drop("mean", "last").select("rows r", "`key` AS k", "*"),
    "windows": _windows,
    "sessions": lambda rows: rows.key_by("key").window(session("40 seconds")).aggregate("sessions", rows="count(*)"),
    "time of windows": lambda rows: _windows(rows).select("window_time AS at", "window_end", "rows"),
    "the first rows of windows": lambda rows: (
        rows.select("key", "number", "at").key_by("key").top(2, by="number", within=tumbling("2 minutes"))
    ),
    "a join": lambda rows: rows.join(
        rows.select("key", "number AS other", "at AS since").with_watermark("since", "1 second"),
        on="key",
        within=("-1 minute", "1 minute"),
    ).select("key", "number", "other", "inner.deep.n AS deep"),
    "duplicates": lambda rows: rows.drop_duplicates("key", within="1 minute").select("key", "at"),
}
COMPUTED: dict[str, Callable[[Stream], Stream]] = {
    "a computed column": lambda rows: _latest(rows).select("key", "rows + 1 AS rows"),
    "an average": lambda rows: _latest(rows).select("key", "mean"),
    "a whole struct": lambda rows: _latest(rows).select("key", "last"),
    "a literal": lambda rows: _latest(rows).select("key", "NULL AS nothing"),
    "a filter": lambda rows: _latest(rows).select("key", "rows").where("rows > 1"),
    "a field of an array": lambda rows: (
        rows.key_by("key").aggregate("latest", last="max_by(array(inner), number)").select("key", "last.Name AS names")
    ),
}

USUAL = ("columns and fields", "time of windows", "a computed column", "a filter")
"""Those that ``make test`` runs; the others are marked long."""


def _outputs(shape: Callable[[Stream], Stream], spark: SparkSession) -> list[pa.Table]:
    pipeline = Pipeline("straight")
    rows = pipeline.read("rows", generator.source(COLUMNS)).with_watermark("at", "1 second")
    shape(rows).write("out", console.sink())
    with Harness(pipeline, spark, CONFIGURATION) as test:
        return [test.epoch(rows=each)["out"] for each in ([], _rows(0, 9), _rows(9, 8), _rows(99, 2), [])]


def _in_order(table: pa.Table) -> Sequence[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in (*STRAIGHT, *COMPUTED)],
)
def test_rows_and_schema_are_those_of_spark(name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[StraightSink] = []

    def noting(*arguments: Any) -> dict[int, StraightSink]:
        sinks = straight_sinks(*arguments)
        found.extend(sinks.values())
        return sinks

    shape = (STRAIGHT | COMPUTED)[name]
    monkeypatch.setattr(spark_runner, "straight_sinks", noting)
    fused = _outputs(shape, spark)
    assert bool(found) == (name in STRAIGHT)
    monkeypatch.setattr(spark_runner, "straight_sinks", lambda *_: {})
    for mine, by_spark in zip(fused, _outputs(shape, spark), strict=True):
        assert mine.schema == by_spark.schema
        assert _in_order(mine) == _in_order(by_spark)
    assert sum(table.num_rows for table in fused) > 0
