"""Time of a small epoch from the trigger to prepared: one operator, one sink, warm.

Compared with the minimal Spark job of the same shape: the same file, the same aggregation, and a Python stage that
returns its rows.
"""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import engine, inputs, pipelines
from benchmarks.passing import pass_on
from benchmarks.result import Result, at_most, number, percentile
from epochal.contracts.configuration import Configuration

EPOCHS, ROWS, KEYS, WARM = 80, 1_000, 500, 40
INTERVAL_SECONDS = 0.5
"""Long enough for the commit of the previous epoch, so that epochs do not queue."""


def run(folder: Path) -> list[Result]:
    source = inputs.write_files(folder / "input", EPOCHS, ROWS, KEYS)
    settings = configuration(folder)
    with engine.engine_session(settings) as spark:
        milliseconds = epochs(folder, source, EPOCHS, spark, settings)[WARM:]
        plain = _plain_jobs(spark, sorted(source.iterdir())[WARM:])
    how = (
        f"{ROWS:,} rows an epoch, state and files sink, an epoch every {INTERVAL_SECONDS:g} s; "
        f"the last {EPOCHS - WARM} of {EPOCHS}, trigger to prepared"
    )
    return [
        at_most("small epoch, p50", percentile(milliseconds, 0.5), 200, "ms", how, digits=0),
        number("small epoch, p99", percentile(milliseconds, 0.99), "ms", digits=0),
        number(
            "small epoch, Spark's part, p50",
            percentile(plain, 0.5),
            "ms",
            "a plain job of the same shape: scan, aggregation, a Python stage that returns its rows",
            digits=0,
        ),
    ]


def configuration(folder: Path) -> Configuration:
    return engine.configuration(folder / "epochal", epoch_interval_seconds=INTERVAL_SECONDS)


def epochs(folder: Path, source: Path, count: int, spark: SparkSession, settings: Configuration) -> list[float]:
    """Milliseconds of each epoch from its trigger to prepared."""
    pipeline = pipelines.aggregate_to_files(source, folder / "output")
    times = engine.run_epochs(pipeline, spark, folder / "epochal", settings, count)
    return [time.seconds * 1000 for time in times]


def _plain_jobs(spark: SparkSession, files: list[Path]) -> list[float]:
    """Milliseconds of each job."""
    milliseconds = []
    for file in files:
        started = time.perf_counter()
        rows = spark.read.schema(inputs.SCHEMA).parquet(str(file))
        sums = rows.groupBy("key").agg({"value": "sum"}).toDF("key", "total")
        columns = "key long, total long"
        sums.mapInArrow(pass_on, columns).collect()
        milliseconds.append((time.perf_counter() - started) * 1000)
        time.sleep(INTERVAL_SECONDS / 5)
    return milliseconds
