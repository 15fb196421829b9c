"""The key/value store of ``examples/sdg``, fed from files: throughput and time of an epoch, as in figures 5 and 6.

An epoch takes one file of ``put`` and one of ``get``. It is what a call waits for: the rest of the epoch in which it
came, and the next one, in which it is answered. The points take turns, so that what else the machine does meets all
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks import engine
from benchmarks.engine import EpochTime
from benchmarks.figure import Figure, throughput_and_latency
from epochal import Pipeline
from epochal.connectors import files
from epochal.contracts.configuration import Configuration
from examples.sdg.key_value_store import KeyValueStore

COLUMNS = {"put": "at long, key string, value string", "get": "at long, key string"}
VALUE = "v" * 90
"""With its number in front, of about 100 bytes."""
COLD_EPOCHS = 2
"""Of each turn: an attempt begins cold."""


@dataclass(frozen=True)
class Sizes:
    """``keys`` of state at each point, ``calls`` an epoch, ``epochs`` a turn, of which the first two are not counted;
    nor is the first of ``turns``, in which a JVM learns its code."""

    calls: int
    turns: int
    epochs: int
    read_percent: tuple[int, ...]
    keys_for_ratio: int
    keys: tuple[int, ...]
    filled_an_epoch: int


FULL = Sizes(50_000, 4, 7, (10, 30, 50, 70, 90), 200_000, (10_000, 100_000, 1_000_000, 2_000_000), 250_000)
QUICK = Sizes(200, 2, 3, (10, 90), 500, (500, 2_000), 1_000)


@dataclass(frozen=True)
class Point:
    """A store of ``keys`` keys that is called with ``reads`` of ``calls`` calls an epoch reading."""

    keys: int
    calls: int
    reads: int


def read_write_ratio(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    points = {
        float(percent): Point(sizes.keys_for_ratio, sizes.calls, sizes.calls * percent // 100)
        for percent in sizes.read_percent
    }
    return Figure(
        "sdg-read-write-ratio",
        "Key/value store: calls that read",
        "calls that read, %",
        False,
        throughput_and_latency(measure(folder, points, sizes)),
        f"{sizes.calls:,} calls an epoch of `examples/sdg/key_value_store.py`, over {sizes.keys_for_ratio:,} keys.",
    )


def state_size(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    points = {float(keys): Point(keys, sizes.calls, sizes.calls // 2) for keys in sizes.keys}
    return Figure(
        "sdg-state-size",
        "Key/value store: size of its state",
        "keys, of about 100 bytes each",
        True,
        throughput_and_latency(measure(folder, points, sizes)),
        f"{sizes.calls:,} calls an epoch, half of which read, over all keys.",
    )


def measure(folder: Path, points: Mapping[float, Point], sizes: Sizes) -> dict[float, list[EpochTime]]:
    """By point the epochs that count. Raises ``RuntimeError`` where an epoch has not had the calls that it should."""
    settings = engine.configuration(folder)
    found: dict[float, list[EpochTime]] = {x: [] for x in points}
    with engine.engine_session(settings) as spark:
        for x, point in points.items():
            fill(folder / f"{x:g}", point.keys, sizes.filled_an_epoch, spark, settings)
        for turn in range(sizes.turns):
            for x, point in points.items():
                times = called(folder / f"{x:g}", point, turn, sizes.epochs, spark, settings)
                if turn:
                    found[x] += times[COLD_EPOCHS:]
    return found


def fill(folder: Path, keys: int, an_epoch: int, spark: SparkSession, settings: Configuration) -> None:
    """A store below ``folder`` that has ``keys`` keys, by ``put`` alone."""
    starts = range(0, keys, an_epoch)
    for number, start in enumerate(starts):
        numbers = np.arange(start, min(start + an_epoch, keys), dtype=np.int64)
        _write(folder, number, {"put": numbers, "get": numbers[:1]}, start)
    engine.run_epochs(pipeline(folder), spark, folder, settings, len(starts))


def called(
    folder: Path, point: Point, turn: int, epochs: int, spark: SparkSession, settings: Configuration
) -> list[EpochTime]:
    """The next ``epochs`` epochs of the store below ``folder``."""
    random = np.random.default_rng(turn)
    for number in range(epochs):
        at = (turn * epochs + number) * point.calls + point.keys
        keys = random.integers(0, point.keys, point.calls, dtype=np.int64)
        parts = {"get": keys[: point.reads], "put": keys[point.reads :]}
        _write(folder, 1_000_000 + turn * epochs + number, parts, at)
    times = engine.run_epochs(pipeline(folder), spark, folder, settings, epochs)
    if wrong := [each.rows for each in times if each.rows != point.calls]:
        raise RuntimeError(f"epochs have read {wrong} calls, and not {point.calls} each")
    return times


def pipeline(folder: Path) -> Pipeline:
    """The example's class; one file of each kind an epoch."""
    pipeline = Pipeline("key-value-store")
    store = pipeline.program(KeyValueStore)
    for name, columns in COLUMNS.items():
        source = files.source(str(folder / name), format="parquet", schema=columns, max_files=1)
        store.feed(name, pipeline.read(name, source), order_by="at", keep=("key", "at"))
    store.results("get").write("answers", files.sink(str(folder / "answers"), format="json"))
    return pipeline


def _write(folder: Path, number: int, keys: Mapping[str, np.ndarray], at: int) -> None:
    """A file of each kind: the calls one microsecond after the other, puts and gets by turns."""
    values: Mapping[str, Callable[[list[str]], dict[str, list[str]]]] = {
        "put": lambda names: {"value": [f"{name} {at} {VALUE}" for name in names]},
        "get": lambda names: {},
    }
    for name, chosen in keys.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        names = [f"key-{key}" for key in chosen]
        columns = {"at": np.arange(at, at + len(names), dtype=np.int64), "key": names, **values[name](names)}
        pq.write_table(pa.table(columns), folder / name / f"{number:08}.parquet")
