"""Cost of snapshots for a graph of six operators and three shuffles, by requested interval (ABS 5, figure 6).

The graph of the paper's evaluation: a source, a map, three keyed aggregates with a full shuffle each, a sink. Rows
arrive at a constant rate. It runs in three ways: as Spark jobs of the same shape without state and snapshots; as epochs
that wait for all previous commits (the synchronous snapshots of the paper); as epochs whose commits follow later
(asynchronous). An epoch is the unit of work, so that intervals shorter than the time of an epoch are not achieved.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import charts, engine, inputs
from benchmarks.descriptions import ASYNCHRONOUS_TO_SYNCHRONOUS
from benchmarks.result import Result, number, percentile
from benchmarks.sessions import session
from epochal import Pipeline
from epochal.connectors import files

REQUESTED_SECONDS = (0.1, 0.5, 2.0)
ROWS, KEYS = 20_000, 50_000
EVERY_SECONDS = 0.2
"""A file of ``ROWS`` rows every ``EVERY_SECONDS``: 100,000 rows a second."""
LASTS_SECONDS, EPOCHS_AT_LEAST = 6, 4
"""Rows arrive for ``LASTS_SECONDS``, or for ``EPOCHS_AT_LEAST`` requested intervals if this is longer."""
WARM_FILES = 5

Commit = Literal["asynchronous", "synchronous"]


@dataclass(frozen=True)
class Epoch:
    """Number of rows, begin, and time at which the results were visible, in seconds of the clock of arrivals."""

    rows: int
    began: float
    visible: float


@dataclass(frozen=True)
class Run:
    """One way to run the graph at one interval."""

    way: str
    requested: float
    achieved: float
    """Median seconds between the beginnings of two epochs."""
    throughput: float
    """Rows a second, from the arrival of the first row until the last one was visible."""
    latency: float
    """Median seconds from the arrival of a row until it was visible."""
    slowest: float
    """The 99th percentile of the latency."""


def graph(folder: Path, output: Path) -> Pipeline:
    """Six operators, three shuffles. An aggregate reads the changed values of the previous one."""
    pipeline = Pipeline("benchmark")
    rows = pipeline.read("rows", files.source(str(folder), format="parquet", schema=inputs.SCHEMA))
    mapped = rows.with_columns(amount="value * 3 + 1")
    first = mapped.key_by("key").aggregate("by_key", rows="count(*)", total="sum(amount)")
    coarser = first.with_columns(bucket="key % 5000")
    second = coarser.key_by("bucket").aggregate("by_bucket", over_updates=True, rows="sum(rows)", most="max(total)")
    coarsest = second.with_columns(part="bucket % 100")
    third = coarsest.key_by("part").aggregate("by_part", over_updates=True, rows="sum(rows)", most="max(most)")
    third.write("out", files.sink(str(output), mode="updates"))
    return pipeline


def lasts(requested: float) -> float:
    """Seconds during which rows arrive."""
    return max(LASTS_SECONDS, EPOCHS_AT_LEAST * requested)


def run(folder: Path) -> list[Result]:
    prepared = inputs.write_files(folder / "prepared", round(lasts(max(REQUESTED_SECONDS)) / EVERY_SECONDS), ROWS, KEYS)
    runs: list[Run] = []
    with session(folder / "plain") as spark:
        for requested in REQUESTED_SECONDS:
            runs.append(_plain(spark, prepared, folder / f"plain-{requested}", requested))
    settings = engine.configuration(folder / "epochal")
    with engine.engine_session(settings) as spark:
        for requested in REQUESTED_SECONDS:
            for commit in ("asynchronous", "synchronous"):
                runs.append(_epochs(spark, prepared, folder / f"{commit}-{requested}", requested, commit))
    _draw(runs)
    long = f"{LASTS_SECONDS} s, or {EPOCHS_AT_LEAST} intervals"
    how = f"{ROWS / EVERY_SECONDS:,.0f} rows/s for {long}; charts/abs-throughput.svg, charts/abs-latency.svg"
    return [*(result for one in runs for result in _results(one, how)), *_compared(runs)]


def _results(one: Run, how: str) -> Iterator[Result]:
    name = f"ABS graph, {one.way}, every {one.requested:g} s requested"
    yield number(f"{name}: achieved", one.achieved, "s", how)
    yield number(f"{name}: throughput", one.throughput, "rows/s", digits=0)
    yield number(f"{name}: latency, p50", one.latency, "s", f"p99 {one.slowest:.2f} s")


def _compared(runs: Sequence[Run]) -> Iterator[Result]:
    """Ratios for figure 6 of the paper: the same interval with either kind of snapshot."""
    of = {(one.way, one.requested): one for one in runs}
    for requested in REQUESTED_SECONDS:
        ours, theirs = (of[f"{kind} snapshots", requested] for kind in ("asynchronous", "synchronous"))
        name = f"{ASYNCHRONOUS_TO_SYNCHRONOUS}, every {requested:g} s requested"
        yield number(f"{name}: throughput", ours.throughput / theirs.throughput, "times")
        yield number(f"{name}: latency, p50", ours.latency / theirs.latency, "times")


def _draw(runs: Sequence[Run]) -> None:
    ways = list(dict.fromkeys(one.way for one in runs))

    def series(value: Callable[[Run], float]) -> dict[str, list[tuple[float, float]]]:
        return {way: [(one.requested, value(one)) for one in runs if one.way == way] for way in ways}

    requested = "interval requested (s)"
    charts.line_chart(
        "abs-throughput", "Six operators, three shuffles", requested, "rows/s", series(lambda r: r.throughput)
    )
    charts.line_chart(
        "abs-latency", "Six operators, three shuffles", requested, "latency, median (s)", series(lambda r: r.latency)
    )
    charts.line_chart(
        "abs-achieved",
        "Six operators, three shuffles",
        requested,
        "interval achieved (s)",
        series(lambda r: r.achieved),
    )


class Arrivals:
    """Moves prepared files into a folder, one every :data:`EVERY_SECONDS`, and records the times."""

    def __init__(self, prepared: Path, folder: Path, seconds: float) -> None:
        folder.mkdir(parents=True)
        self.times: list[float] = []
        self._prepared, self._folder = sorted(prepared.iterdir())[: round(seconds / EVERY_SECONDS)], folder
        self._thread = threading.Thread(target=self._move, daemon=True)

    @property
    def rows(self) -> int:
        return len(self._prepared) * ROWS

    def start(self) -> None:
        self._thread.start()

    def _move(self) -> None:
        began = time.time()
        for place, file in enumerate(self._prepared):
            time.sleep(max(0.0, began + place * EVERY_SECONDS - time.time()))
            arriving = self._folder / f".{file.name}"
            shutil.copyfile(file, arriving)
            self.times.append(time.time())
            os.rename(arriving, self._folder / file.name)


def _measured(way: str, requested: float, arrivals: Arrivals, epochs: Sequence[Epoch]) -> Run:
    latencies: list[float] = []
    ends = list(accumulate(epoch.rows // ROWS for epoch in epochs))
    for epoch, end in zip(epochs, ends, strict=True):
        arrived = arrivals.times[end - epoch.rows // ROWS : end]
        latencies += [epoch.visible - at for at in arrived]
    beginnings = np.diff([epoch.began for epoch in epochs])
    total = epochs[-1].visible - arrivals.times[0]
    return Run(
        way,
        requested,
        float(median(beginnings)) if len(beginnings) else requested,
        arrivals.rows / total,
        median(latencies),
        percentile(latencies, 0.99),
    )


def _epochs(spark: SparkSession, prepared: Path, folder: Path, requested: float, commit: Commit) -> Run:
    """Run epochs every ``requested`` seconds while rows arrive; the first epochs of a session do not count."""
    settings = engine.configuration(folder, epoch_interval_seconds=requested, commit=commit)
    warm = Arrivals(prepared, folder / "input", lasts(requested))
    pipeline = graph(folder / "input", folder / "output")
    for file in sorted(prepared.iterdir())[:WARM_FILES]:
        shutil.copyfile(file, folder / "input" / f"-{file.name}")
    engine.run_epochs(pipeline, spark, folder / "epochal", settings, 1)
    warm.start()
    records = engine.run_rows(pipeline, spark, folder / "epochal", settings, warm.rows)
    epochs = [
        Epoch(record.rows_in or 0, record.started_at.timestamp(), record.committed_at.timestamp())
        for record in records
        if record.committed_at is not None and record.rows_in
    ]
    return _measured(f"{commit} snapshots", requested, warm, epochs)


def _plain(spark: SparkSession, prepared: Path, folder: Path, requested: float) -> Run:
    """Run Spark jobs of the same shape over the arrived rows, without state and snapshots."""
    _job(spark, sorted(prepared.iterdir())[:WARM_FILES])
    arrivals = Arrivals(prepared, folder / "input", lasts(requested))
    arrivals.start()
    seen: set[Path] = set()
    epochs: list[Epoch] = []
    while len(seen) * ROWS < arrivals.rows:
        new = sorted(file for file in (folder / "input").glob("[0-9]*.parquet") if file not in seen)
        began = time.time()
        if new:
            _job(spark, new)
            seen.update(new)
            epochs.append(Epoch(len(new) * ROWS, began, time.time()))
        time.sleep(max(0.0 if new else 0.02, began + requested - time.time()))
    return _measured("no snapshots", requested, arrivals, epochs)


def _job(spark: SparkSession, chosen: Sequence[Path]) -> None:
    rows = spark.read.schema(inputs.SCHEMA).parquet(*map(str, chosen)).selectExpr("*", "value * 3 + 1 AS amount")
    first = rows.groupBy("key").agg(F.count("*").alias("rows"), F.sum("amount").alias("total"))
    second = _grouped(first, "key % 5000 AS bucket", "bucket", "max(total) AS most")
    third = _grouped(second, "bucket % 100 AS part", "part", "max(most) AS most")
    third.write.format("noop").mode("overwrite").save()


def _grouped(frame: DataFrame, expression: str, key: str, most: str) -> DataFrame:
    return frame.selectExpr("*", expression).groupBy(key).agg(F.sum("rows").alias("rows"), F.expr(most))
