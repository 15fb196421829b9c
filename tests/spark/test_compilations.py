"""A warm epoch compiles no class: no value that differs in each epoch stands in the code that Spark generates.

A class that is new in each epoch takes its compilation, and the JVM never optimises it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks import engine
from epochal import Pipeline, cumulative, session, sliding, tumbling
from epochal.connectors import console, files
from epochal.engine.job import Answers, EpochPlan
from epochal.engine.spark_runner import SparkRunner
from epochal.pipeline.stream import Stream

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k bigint, v bigint, at timestamp"
WARM = 3
"""Epochs after which each shape of a plan has been seen: without a watermark, with one, and with closed windows."""
EPOCHS = 6

Shape = Callable[[Stream], Stream]


def _timed(rows: Stream, column: str) -> Stream:
    return rows.with_watermark(column, "1 second", max_ahead="1 day", name=column)


def _aggregate(rows: Stream) -> Stream:
    return rows.key_by("k").aggregate("counts", rows="count(*)")


def _tumbling(rows: Stream) -> Stream:
    return _timed(rows, "at").key_by("k").window(tumbling("10 seconds")).aggregate("counts", rows="count(*)")


def _sliding(rows: Stream) -> Stream:
    return _timed(rows, "at").key_by("k").window(sliding("30 seconds", "10 seconds")).aggregate("counts", rows="sum(v)")


def _cumulative(rows: Stream) -> Stream:
    return (
        _timed(rows, "at").key_by("k").window(cumulative("1 minute", "10 seconds")).aggregate("counts", rows="count(*)")
    )


def _session(rows: Stream) -> Stream:
    return _timed(rows, "at").key_by("k").window(session("5 seconds")).aggregate("counts", rows="count(*)")


def _top(rows: Stream) -> Stream:
    return _timed(rows, "at").key_by("k").top(2, by="v", within=tumbling("10 seconds"))


def _duplicates(rows: Stream) -> Stream:
    return _timed(rows, "at").key_by("k").drop_duplicates(within="1 minute")


def _join(rows: Stream) -> Stream:
    others = _timed(rows.select("k", "at AS since"), "since")
    return _timed(rows, "at").join(others, on="k", within=("-10 seconds", "10 seconds"))


def _versions(rows: Stream) -> Stream:
    prices = _timed(rows.select("k", "v AS price", "at AS since"), "since").latest("k", order_by="since")
    return _timed(rows, "at").join(prices, on="k", as_of="at")


def _late_rows(rows: Stream) -> Stream:
    return _timed(rows, "at").key_by("k").window(tumbling("10 seconds")).aggregate("counts", rows="count(*)").late


SHAPES = [_aggregate, _tumbling, _sliding, _cumulative, _session, _top, _duplicates, _versions, _late_rows]


@pytest.mark.parametrize(
    "shape",
    [_join, *(pytest.param(shape, marks=pytest.mark.long) for shape in SHAPES)],
    ids=lambda shape: shape.__name__.strip("_"),
)
def test_a_warm_epoch_compiles_no_class(
    shape: Shape, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[int] = []
    run = SparkRunner.run
    metrics = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics  # type: ignore[union-attr]

    def counting(runner: SparkRunner, plan: EpochPlan, timeout_seconds: float) -> Answers:
        before = metrics.METRIC_COMPILATION_TIME().getCount()
        answers = run(runner, plan, timeout_seconds)
        compiled.append(metrics.METRIC_COMPILATION_TIME().getCount() - before)
        return answers

    monkeypatch.setattr(SparkRunner, "run", counting)
    for epoch in range(EPOCHS):
        at = START + timedelta(seconds=20 * epoch)
        columns = {"k": [0, 1, 2], "v": [epoch] * 3, "at": [at + timedelta(seconds=key) for key in range(3)]}
        pq.write_table(pa.table(columns), tmp_path / f"{epoch}.parquet")
    pipeline = Pipeline("shape")
    # Not a Harness: Spark evaluates filters of local rows while it plans, without generating code.
    source = files.source(str(tmp_path / "*.parquet"), format="parquet", schema=SCHEMA, max_files=1)
    shape(pipeline.read("rows", source)).write("out", console.sink())
    settings = engine.configuration(tmp_path / "work", parallelism=2)
    generating = spark.newSession()
    generating.conf.set("spark.sql.codegen.wholeStage", "true")
    generating.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    engine.run_epochs(pipeline, generating, tmp_path / "work", settings, EPOCHS)
    # The median, since a class that is compiled once, such as for the first closed windows, costs nothing later.
    assert median(compiled[WARM:]) == 0, compiled
