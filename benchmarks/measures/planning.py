"""Small epochs compared with plain Spark jobs of the same shape: one operator and sink, two of each, and verbs.

A turn is a few epochs of each shape, then as many plain jobs over the same files, with the same scans and aggregations
and one Python stage for each operator, which returns its rows. The calls of an epoch into the JVM are counted as well.
The sides alternate, so that other load affects both. A ratio is of one turn; the first turns are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from benchmarks import engine, inputs
from benchmarks.jvm_calls import counted
from benchmarks.passing import pass_on
from benchmarks.result import Result, in_turns, number
from epochal import Pipeline
from epochal.connectors import files
from epochal.contracts.configuration import Configuration

TURNS, COLD_TURNS, EPOCHS, COLD = 4, 2, 7, 2
"""Epochs of each turn, and first epochs that are not counted, because an attempt begins cold."""
ROWS, KEYS, MOST = 1_000, 500, 1.25


@dataclass(frozen=True)
class Shape:
    """``keys``: key of each operator, which has its own sink. ``verbs``: number between source and operators."""

    name: str
    keys: tuple[str, ...]
    verbs: int = 0

    def pipeline(self, source: Path, output: Path) -> Pipeline:
        pipeline = Pipeline("benchmark")
        rows = pipeline.read("rows", files.source(str(source), format="parquet", schema=inputs.SCHEMA, max_files=1))
        for position in range(self.verbs):
            rows = rows.with_columns(**{f"more_{position}": f"value + {position}"})
        for key in self.keys:
            counted_rows = rows.key_by(key).aggregate(f"by_{key}", rows="count(*)", total="sum(value)")
            counted_rows.write(f"by_{key}", files.sink(str(output / key), mode="updates"))
        return pipeline

    def job(self, spark: SparkSession, file: Path) -> None:
        """Run the minimal Spark job with the same result, without storing or writing rows."""
        rows = spark.read.schema(inputs.SCHEMA).parquet(str(file))
        branches = [_plain(rows, key) for key in self.keys]
        reduce(DataFrame.unionAll, branches).collect()


SHAPES = (
    Shape("one operator and a sink", ("key",)),
    Shape("two operators and two sinks", ("key", "value")),
    Shape("eight verbs, one operator and a sink", ("key",), verbs=8),
)


@dataclass
class Measured:
    """Results of one shape by turn: milliseconds of the median epoch and job, and calls of an epoch into the JVM."""

    epochs: list[float] = field(default_factory=list)
    jobs: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)


def run(folder: Path, turns: int = TURNS) -> list[Result]:
    source = inputs.write_files(folder / "input", (turns + COLD_TURNS) * EPOCHS, ROWS, KEYS)
    listed = sorted(source.iterdir())
    settings = engine.configuration(folder)
    measured = {shape: Measured() for shape in SHAPES}
    with engine.engine_session(settings) as spark:
        for turn in range(turns + COLD_TURNS):
            for shape, found in measured.items():
                _epochs(folder / shape.name.replace(" ", "-"), shape, source, spark, settings, found)
                taken = listed[turn * EPOCHS : (turn + 1) * EPOCHS]
                found.jobs.append(median([_milliseconds(shape, spark, file) for file in taken][COLD:]))
    return [result for shape, found in measured.items() for result in _results(shape, found)]


def _epochs(
    folder: Path, shape: Shape, source: Path, spark: SparkSession, settings: Configuration, found: Measured
) -> None:
    pipeline = shape.pipeline(source, folder / "output")
    with counted() as calls:
        times = engine.run_epochs(pipeline, spark, folder / "epochal", settings, EPOCHS)
    found.epochs.append(median(each.seconds for each in times[COLD:]) * 1000)
    found.calls.append(calls.total() // EPOCHS)


def _results(shape: Shape, found: Measured) -> Iterator[Result]:
    epochs, jobs = found.epochs[COLD_TURNS:], found.jobs[COLD_TURNS:]
    calls = f"{found.calls[-1]} calls into the JVM, including the start of an attempt"
    how = f"{ROWS:,} rows an epoch, trigger to prepared; {calls}"
    yield number(f"small epoch, {shape.name}", median(epochs), "ms", how, digits=0)
    yield number(
        f"plain Spark job, {shape.name}",
        median(jobs),
        "ms",
        "a Python stage for each operator, which returns its rows",
        digits=0,
    )
    yield in_turns(f"small epoch / plain Spark job, {shape.name}", epochs, jobs, most=MOST)


def _milliseconds(shape: Shape, spark: SparkSession, file: Path) -> float:
    began = time.perf_counter()
    shape.job(spark, file)
    return (time.perf_counter() - began) * 1000


def _plain(rows: DataFrame, key: str) -> DataFrame:
    sums = rows.groupBy(key).agg({"*": "count", "value": "sum"}).toDF("key", "rows", "total")
    columns = "key long, rows long, total long"
    return sums.mapInArrow(pass_on, columns)
