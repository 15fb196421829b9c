"""The key/value store of ``examples/sdg``, fed from files: throughput and time of an epoch, as in figures 5 and 6.

An epoch reads one file of ``put`` and one of ``get``. A call waits for the end of the current epoch, and for the next
one, which answers it. The points alternate, so that other load of the machine affects all alike.
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
"""A value is a number and this text, about 100 bytes."""
COLD_EPOCHS = 2
"""First epochs of each turn that are not counted, because an attempt begins cold."""


@dataclass(frozen=True)
class Sizes:
    """``keys`` of state at each point, ``calls`` an epoch, ``epochs`` of each turn. The first two epochs of a turn and
    the first of ``turns``, in which the JVM warms up, are not counted."""

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
    """A store of ``keys`` keys with ``calls`` calls an epoch, ``reads`` of which read."""

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
    """Counted epochs of each point. Raises ``RuntimeError`` if an epoch has a wrong number of calls."""
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
    """Create a store in ``folder`` with ``keys`` keys by ``put``."""
    starts = range(0, keys, an_epoch)
    for number, start in enumerate(starts):
        numbers = np.arange(start, min(start + an_epoch, keys), dtype=np.int64)
        _write(folder, number, {"put": numbers, "get": numbers[:1]}, start)
    engine.run_epochs(pipeline(folder), spark, folder, settings, len(starts))


def called(
    folder: Path, point: Point, turn: int, epochs: int, spark: SparkSession, settings: Configuration
) -> list[EpochTime]:
    """Run the next ``epochs`` epochs of the store in ``folder``."""
    random = np.random.default_rng(turn)
    for number in range(epochs):
        at = (turn * epochs + number) * point.calls + point.keys
        keys = random.integers(0, point.keys, point.calls, dtype=np.int64)
        parts = {"get": keys[: point.reads], "put": keys[point.reads :]}
        _write(folder, 1_000_000 + turn * epochs + number, parts, at)
    times = engine.run_epochs(pipeline(folder), spark, folder, settings, epochs)
    if wrong := [each.rows for each in times if each.rows != point.calls]:
        raise RuntimeError(f"epochs have read {wrong} calls instead of {point.calls} each")
    return times


def pipeline(folder: Path) -> Pipeline:
    """Pipeline of the example's class that reads one file of each kind in an epoch."""
    pipeline = Pipeline("key-value-store")
    store = pipeline.program(KeyValueStore)
    for name, columns in COLUMNS.items():
        source = files.source(str(folder / name), format="parquet", schema=columns, max_files=1)
        store.feed(name, pipeline.read(name, source), order_by="at", keep=("key", "at"))
    store.results("get").write("answers", files.sink(str(folder / "answers"), format="json"))
    return pipeline


def _write(folder: Path, number: int, keys: Mapping[str, np.ndarray], at: int) -> None:
    """Write a file of each kind: alternating puts and gets, one microsecond apart."""
    values: Mapping[str, Callable[[list[str]], dict[str, list[str]]]] = {
        "put": lambda names: {"value": [f"{name} {at} {VALUE}" for name in names]},
        "get": lambda names: {},
    }
    for name, chosen in keys.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        names = [f"key-{key}" for key in chosen]
        columns = {"at": np.arange(at, at + len(names), dtype=np.int64), "key": names, **values[name](names)}
        pq.write_table(pa.table(columns), folder / name / f"{number:08}.parquet")
