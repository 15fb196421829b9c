"""Windows, joins of streams, duplicates and timers, each beside what it is compared with, in turns.

Rows are of 200,000 keys, and event time goes on by five minutes an epoch. Whatever takes part in a comparison runs the
same files in the same JVM, one after the other, in each of the turns; a ratio is of one turn. What takes long has one,
of several epochs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import engine
from benchmarks.result import Result, number
from benchmarks.structured_streaming import ROCKSDB
from epochal import Context, KeyedProcess, Pipeline, sliding, tumbling
from epochal import session as session_window
from epochal.connectors import console, files
from epochal.pipeline.stream import Stream

SCHEMA = "key bigint, value bigint, at timestamp"
MINUTE, KEYS, ROWS, EPOCHS, WARM, TURNS = 60_000_000, 200_000, 1_000_000, 6, 3, 3
LONG_TURNS, JOINED_ROWS = 1, 250_000
SPAN = 5 * MINUTE
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
DELAY = "10 seconds"
LOADED, PROBED = 5, 3
"""Epochs that bring five million keys into state, and epochs of rows with keys of these."""
COUNTED, PROBES = slice(WARM, EPOCHS), slice(LOADED, LOADED + PROBED)
TIMERS, A_MINUTE_LATER = 1_000_000, datetime(2026, 1, 1, 0, 1, tzinfo=UTC)

Run = Callable[[SparkSession, Path], list[float]]
"""Seconds of each epoch, or micro-batch; its files are below the folder."""


def run(folder: Path, turns: int = TURNS) -> list[Result]:
    rows = _written(folder / "rows", ROWS, KEYS)
    left, right = (_written(folder / side, JOINED_ROWS, KEYS, seed) for seed, side in enumerate(("left", "right"), 2))
    loaded = _loaded(folder / "keys")
    plain, tumbling_windows, sliding_windows = (
        partial(_ours, build, rows) for build in (_aggregate, _tumbling, _sliding)
    )
    our_sessions, their_sessions = partial(_ours, _sessions, rows), partial(_theirs, _their_sessions, rows)
    our_join, their_join = partial(_joined, left, right), partial(_their_join, left, right)
    first_rows = partial(_ours, _first_rows, loaded, epochs=LOADED + PROBED)
    their_first_rows = partial(_theirs, _their_first_rows, loaded)
    duplicates = f"drop_duplicates, {LOADED * ROWS // 1_000_000}M keys of state"
    with engine.engine_session(engine.configuration(folder)) as spark:
        for option, value in ROCKSDB.items():
            spark.conf.set(option, value)
        in_turns = partial(_in_turns, spark, folder, turns=turns)
        long = partial(_in_turns, spark, folder, turns=min(turns, LONG_TURNS))
        plain(spark, folder / "warm")
        return [
            *_longer("tumbling / no windows", 1.25, *in_turns(plain, tumbling_windows)),
            *_longer("sliding 1 h / tumbling, 5 min", 1.5, *in_turns(tumbling_windows, sliding_windows)),
            *_faster("session windows", *long(our_sessions, their_sessions)),
            *_faster("interval join", *long(our_join, their_join)),
            *_faster(duplicates, *long(first_rows, their_first_rows, PROBES)),
            *_timers(spark, folder),
        ]


def _longer(name: str, most: float, first: Sequence[float], second: Sequence[float]) -> Iterator[Result]:
    """How much longer the second takes: at most so many times."""
    ratios = [after / before for before, after in zip(first, second, strict=True)]
    yield number(f"{name}: an epoch", median(second), "s", f"beside {median(first):.2f} s")
    yield Result(name, f"at most {most:g} times", _bounds(ratios), max(ratios) <= most, "least and greatest")


def _faster(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Iterator[Result]:
    """How many times as fast as Structured Streaming with RocksDB: at least two."""
    ratios = [base / mine for mine, base in zip(ours, theirs, strict=True)]
    yield number(f"{name}: an epoch", median(ours), "s", f"Structured Streaming, RocksDB: {median(theirs):.2f} s")
    yield Result(f"{name}: faster", "at least 2 times", _bounds(ratios), min(ratios) >= 2, "least and greatest")


def _bounds(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f} times"


def _in_turns(
    spark: SparkSession, folder: Path, first: Run, second: Run, counted: slice = COUNTED, *, turns: int
) -> tuple[list[float], list[float]]:
    """The median epoch of each, in each of the turns."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        for which, one in enumerate((first, second)):
            work = folder / f"work-{turn}-{which}"
            seconds[which].append(median(one(spark, work)[counted]))
            shutil.rmtree(work)
    return seconds


def _ours(
    build: Callable[[Stream], Stream], source: Path, spark: SparkSession, work: Path, epochs: int = EPOCHS
) -> list[float]:
    pipeline = Pipeline("benchmark")
    build(_read(pipeline, "rows", source)).write("out", console.sink(rows=1))
    return _run(pipeline, spark, work, epochs)


def _run(pipeline: Pipeline, spark: SparkSession, work: Path, epochs: int) -> list[float]:
    times = engine.run_epochs(pipeline, spark, work, engine.configuration(work), epochs)
    return [epoch.seconds for epoch in times]


def _read(pipeline: Pipeline, name: str, source: Path) -> Stream:
    rows = pipeline.read(name, files.source(str(source), format="parquet", schema=SCHEMA, max_files=1))
    return rows.with_watermark("at", DELAY, name=name)


def _aggregate(rows: Stream) -> Stream:
    return rows.key_by("key").aggregate("counts", rows="count(*)", total="sum(value)")


def _tumbling(rows: Stream) -> Stream:
    return rows.key_by("key").window(tumbling("5 minutes")).aggregate("counts", rows="count(*)", total="sum(value)")


def _sliding(rows: Stream) -> Stream:
    windows = sliding("1 hour", "5 minutes")
    return rows.key_by("key").window(windows).aggregate("counts", rows="count(*)", total="sum(value)")


def _sessions(rows: Stream) -> Stream:
    windows = session_window("1 minute")
    return rows.key_by("key").window(windows).aggregate("counts", rows="count(*)", total="sum(value)")


def _first_rows(rows: Stream) -> Stream:
    return rows.drop_duplicates("key", within="10 days")


def _joined(left: Path, right: Path, spark: SparkSession, work: Path) -> list[float]:
    pipeline = Pipeline("benchmark")
    other = _read(pipeline, "right", right).select("key", "value AS other", "at AS other_at")
    other = other.with_watermark("other_at", DELAY)
    both = _read(pipeline, "left", left).join(other, on="key", within=("0 seconds", "1 minute"))
    both.write("out", console.sink(rows=1))
    return _run(pipeline, spark, work, EPOCHS)


def _theirs(build: Callable[[DataFrame], DataFrame], source: Path, spark: SparkSession, work: Path) -> list[float]:
    return _batches(build(_stream(spark, source).withWatermark("at", DELAY)), work)


def _stream(spark: SparkSession, source: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))


def _their_sessions(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.session_window("at", "1 minute"), "key").agg(F.count("*"), F.sum("value"))


def _their_first_rows(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicatesWithinWatermark(["key"])


def _their_join(left: Path, right: Path, spark: SparkSession, work: Path) -> list[float]:
    one = _stream(spark, left).withWatermark("at", DELAY).alias("one")
    two = _stream(spark, right).withWatermark("at", DELAY).alias("two")
    near = "one.key = two.key AND two.at BETWEEN one.at AND one.at + INTERVAL 1 MINUTE"
    return _batches(one.join(two, F.expr(near)).select("one.*", "two.value"), work)


def _batches(frame: DataFrame, work: Path) -> list[float]:
    query = (
        frame.writeStream.outputMode("append")
        .format("noop")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress: Sequence[Mapping[str, Any]] = query.recentProgress
    return [each["durationMs"]["triggerExecution"] / 1000 for each in progress if each["numInputRows"]]


class OneTimer(KeyedProcess):
    """Of each key one timer, a minute after its first row."""

    output = "key bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
        ctx.timer(A_MINUTE_LATER)

    def on_timer(self, key: Any, at: Any, ctx: Context) -> None:
        pass


def _timers(spark: SparkSession, folder: Path) -> list[Result]:
    source = folder / "timers"
    source.mkdir()
    _write(source / "0.parquet", np.arange(TIMERS), np.full(TIMERS, START))
    _write(source / "1.parquet", np.array([0]), np.array([START + 10 * MINUTE]))
    pipeline = Pipeline("benchmark")
    _read(pipeline, "rows", source).key_by("key").process(OneTimer).write("out", console.sink(rows=1))
    times = _run(pipeline, spark, folder / "work-timers", 3)
    how = f"{TIMERS:,} timers of as many keys; the epoch without rows in which all fire, on_timer does nothing"
    seconds = times[2]
    return [Result("timers due in one epoch", "at most 10 s", f"{seconds:.1f} s", seconds <= 10, how)]


def _written(folder: Path, rows: int, keys: int, seed: int = 1) -> Path:
    """A file an epoch: keys drawn evenly, times within the epoch's five minutes, in their order."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for epoch in range(EPOCHS):
        at = START + epoch * SPAN + np.sort(random.integers(0, SPAN, rows))
        _write(folder / f"{epoch:04}.parquet", random.integers(0, keys, rows), at)
    return folder


def _loaded(folder: Path) -> Path:
    """Files with a million keys each, and some with rows of keys that have come."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(5)
    for epoch in range(LOADED + PROBED):
        known = random.integers(0, LOADED * ROWS, ROWS)
        keys = np.arange(epoch * ROWS, (epoch + 1) * ROWS) if epoch < LOADED else known
        _write(folder / f"{epoch:04}.parquet", random.permutation(keys), np.full(ROWS, START + epoch * 1_000_000))
    return folder


def _write(file: Path, keys: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> None:
    times = pa.array(at, pa.int64()).cast(pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"key": pa.array(keys, pa.int64()), "value": pa.array(keys % 1000), "at": times}), file)
