"""Windows, joins of streams, duplicates and timers, each alternating with its baseline.

Event time advances by five minutes in each epoch. The sides of a comparison run the same files in the same JVM, one
after the other, and continue in each turn where they stopped; a ratio is of one turn. The first turn, in which state is
loaded and the JVM warms up, is not counted, nor is the first epoch of each turn, because an attempt begins cold.
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
from benchmarks.result import Result, in_turns, number
from benchmarks.structured_streaming import ROCKSDB
from epochal import Context, KeyedProcess, Pipeline, sliding, tumbling
from epochal import session as session_window
from epochal.connectors import console, files
from epochal.pipeline.stream import Stream

SCHEMA = "key bigint, value bigint, at timestamp"
MINUTE = 60_000_000
SPAN = 5 * MINUTE
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
DELAY = "10 seconds"
TURNS, COLD = 2, 1
"""Number of turns, and of first epochs in each that are not counted."""
ROWS, KEYS, EPOCHS = 1_000_000, 200_000, 3
"""For windows in Epochal only: rows and keys of an epoch, and epochs of a turn."""
SESSION_ROWS, SESSION_KEYS, JOINED_ROWS, JOINED_KEYS, LONG_EPOCHS = 250_000, 50_000, 60_000, 48_000, 2
"""Smaller sizes for comparisons in which RocksDB is much slower."""
LOADED, LOADED_ROWS, PROBE_ROWS = 5, 1_000_000, 250_000
"""Number and rows of the epochs that load five million keys, and rows of epochs with loaded keys."""
TIMERS, A_MINUTE_LATER = 1_000_000, datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
STREAMED = ROCKSDB | {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
"""Without micro-batches after the last file, which would not be counted."""

Run = Callable[[Sequence[Path], SparkSession, Path, int], list[float]]
"""Called with input folders, session, working folder and number of epochs. Returns the seconds of each epoch."""


class Side:
    """One way to run a query over prepared files. Each turn continues where the previous one stopped."""

    def __init__(self, run: Run, *sources: Path) -> None:
        self._run = run
        self._listed = [sorted(source.iterdir()) for source in sources]
        self._taken = 0

    def turn(self, spark: SparkSession, folder: Path, epochs: int) -> float:
        """Median epoch without the first. Raises ``RuntimeError`` if an epoch has not read one file of each source."""
        arrived = []
        for place, listed in enumerate(self._listed):
            arrived.append(folder / f"arrived-{place}")
            arrived[-1].mkdir(parents=True, exist_ok=True)
            for file in listed[self._taken : self._taken + epochs]:
                (arrived[-1] / file.name).hardlink_to(file)
        self._taken += epochs
        found = self._run(arrived, spark, folder, epochs)
        if len(found) != epochs:
            raise RuntimeError(f"{len(found)} epochs for {epochs} files")
        return median(found[COLD:])


def run(folder: Path, turns: int = TURNS) -> list[Result]:
    files_of_windows, files_of_others = (turns + 1) * EPOCHS, (turns + 1) * LONG_EPOCHS
    rows = _written(folder / "rows", files_of_windows, ROWS, KEYS)
    session_rows = _written(folder / "session-rows", files_of_others, SESSION_ROWS, SESSION_KEYS)
    left, right = (
        _written(folder / side, files_of_others, JOINED_ROWS, JOINED_KEYS, seed)
        for seed, side in enumerate(("left", "right"), 2)
    )
    loaded = _loaded(folder / "keys", turns * LONG_EPOCHS)
    sessions = f"session windows, {SESSION_ROWS:,} rows of {SESSION_KEYS:,} keys an epoch"
    join = f"interval join, {JOINED_ROWS:,} rows of {JOINED_KEYS:,} keys of each side an epoch"
    duplicates = f"drop_duplicates, {LOADED * LOADED_ROWS // 1_000_000}M keys of state, {PROBE_ROWS:,} rows an epoch"
    joined = [Side(_joined, left, right), Side(_their_join, left, right)]
    with engine.engine_session(engine.configuration(folder)) as spark:
        for option, value in STREAMED.items():
            spark.conf.set(option, value)
        taken = partial(_in_turns, spark, folder / "work", turns=turns)
        windows = [Side(partial(_ours, build), rows) for build in (_aggregate, _tumbling, _sliding)]
        plain, tumbling_windows, sliding_windows = taken(windows, EPOCHS, EPOCHS)
        return [
            *_longer("tumbling / no windows", 1.25, plain, tumbling_windows),
            *_longer("sliding 1 h / tumbling, 5 min", 1.5, tumbling_windows, sliding_windows),
            *_faster(sessions, *taken(_both(_sessions, _their_sessions, session_rows), LONG_EPOCHS, LONG_EPOCHS)),
            *_faster(join, *taken(joined, LONG_EPOCHS, LONG_EPOCHS)),
            *_faster(duplicates, *taken(_both(_first_rows, _their_first_rows, loaded), LOADED, LONG_EPOCHS)),
            *_timers(spark, folder),
        ]


def _both(ours: Callable[[Stream], Stream], theirs: Callable[[DataFrame], DataFrame], source: Path) -> list[Side]:
    return [Side(partial(_ours, ours), source), Side(partial(_theirs, theirs), source)]


def _longer(name: str, most: float, first: Sequence[float], second: Sequence[float]) -> Iterator[Result]:
    """Ratio of the second to the first, with a maximum."""
    how = f"{ROWS:,} rows of {KEYS:,} keys an epoch; compared with {median(first):.2f} s"
    yield number(f"{name}: an epoch", median(second), "s", how)
    yield in_turns(name, second, first, most=most)


def _faster(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Iterator[Result]:
    """Speed relative to Structured Streaming with RocksDB, with a minimum of two."""
    yield number(f"{name}: an epoch", median(ours), "s", f"Structured Streaming, RocksDB: {median(theirs):.2f} s")
    yield in_turns(f"{name}: faster", theirs, ours, least=2)


def _in_turns(
    spark: SparkSession, work: Path, sides: Sequence[Side], first: int, epochs: int, *, turns: int
) -> list[list[float]]:
    """Seconds of each counted turn by side, in alternating order. ``first``: number of epochs before the turns."""
    seconds: list[list[float]] = [[] for _ in sides]
    for turn in range(turns + 1):
        for which in range(len(sides))[:: -1 if turn % 2 else 1]:
            took = sides[which].turn(spark, work / str(which), epochs if turn else first)
            seconds[which].append(took)
    shutil.rmtree(work)
    return [of_turns[1:] for of_turns in seconds]


def _ours(
    build: Callable[[Stream], Stream], arrived: Sequence[Path], spark: SparkSession, work: Path, epochs: int
) -> list[float]:
    pipeline = Pipeline("benchmark")
    build(_read(pipeline, "rows", arrived[0])).write("out", console.sink(rows=1))
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


def _joined(arrived: Sequence[Path], spark: SparkSession, work: Path, epochs: int) -> list[float]:
    left, right = arrived
    pipeline = Pipeline("benchmark")
    other = _read(pipeline, "right", right).select("key", "value AS other", "at AS other_at")
    other = other.with_watermark("other_at", DELAY)
    both = _read(pipeline, "left", left).join(other, on="key", within=("0 seconds", "1 minute"))
    both.write("out", console.sink(rows=1))
    return _run(pipeline, spark, work, epochs)


def _theirs(
    build: Callable[[DataFrame], DataFrame], arrived: Sequence[Path], spark: SparkSession, work: Path, epochs: int
) -> list[float]:
    return _batches(build(_stream(spark, arrived[0]).withWatermark("at", DELAY)), work)


def _stream(spark: SparkSession, source: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))


def _their_sessions(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.session_window("at", "1 minute"), "key").agg(F.count("*"), F.sum("value"))


def _their_first_rows(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicatesWithinWatermark(["key"])


def _their_join(arrived: Sequence[Path], spark: SparkSession, work: Path, epochs: int) -> list[float]:
    left, right = arrived
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
    """Sets one timer for each key, a minute after its first row."""

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


def _written(folder: Path, epochs: int, rows: int, keys: int, seed: int = 1) -> Path:
    """Write a file for each epoch: uniformly distributed keys, ascending times within its five minutes."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for epoch in range(epochs):
        at = START + epoch * SPAN + np.sort(random.integers(0, SPAN, rows))
        _write(folder / f"{epoch:04}.parquet", random.integers(0, keys, rows), at)
    return folder


def _loaded(folder: Path, probes: int) -> Path:
    """Write files with a million new keys each, then files with rows of these keys."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(5)
    for epoch in range(LOADED + probes):
        if epoch < LOADED:
            keys = random.permutation(np.arange(epoch * LOADED_ROWS, (epoch + 1) * LOADED_ROWS))
        else:
            keys = random.integers(0, LOADED * LOADED_ROWS, PROBE_ROWS)
        _write(folder / f"{epoch:04}.parquet", keys, np.full(len(keys), START + epoch * 1_000_000))
    return folder


def _write(file: Path, keys: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> None:
    times = pa.array(at, pa.int64()).cast(pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"key": pa.array(keys, pa.int64()), "value": pa.array(keys % 1000), "at": times}), file)
