"""A keyed count and sum of a million rows an epoch over 200,000 keys, with a durable snapshot after each epoch.

It alternates, in the same JVM, with a Spark batch without state and Structured Streaming with either of its state
stores. Each ratio is of one turn. The first turn, in which the JVM warms up, is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from benchmarks import engine, inputs, pipelines, structured_streaming
from benchmarks.result import Result, in_turns, number
from epochal.contracts.configuration import Configuration

ROWS, KEYS = 1_000_000, 200_000
TURNS, EPOCHS, COLD = 3, 5, 2
"""Number of turns, epochs of each turn, and first epochs that are not counted, because attempts begin cold."""
WARM = 3
HOW = f"{ROWS:,} rows over {KEYS:,} keys a file, a file an epoch; median of the last {EPOCHS - COLD} of each turn"

OURS, BATCH, ROCKSDB, IN_MEMORY = "Epochal", "batch", "RocksDB", "in memory"
Way = Callable[[Path], list[float]]
"""Seconds of an epoch for each new file in the folder."""


def run(folder: Path) -> list[Result]:
    listed = sorted(inputs.write_files(folder / "input", (TURNS + 1) * EPOCHS, ROWS, KEYS).iterdir())
    settings = engine.configuration(folder)
    with engine.engine_session(settings) as spark:
        seconds = _in_turns(folder, _ways(spark, folder, settings), listed)
    return [
        number("keyed aggregate: Epochal", median(seconds[OURS]), "s/epoch", HOW),
        number("keyed aggregate: the same in Spark batch, no state", median(seconds[BATCH]), "s/epoch"),
        number("keyed aggregate: Structured Streaming, RocksDB", median(seconds[ROCKSDB]), "s/epoch", "update mode"),
        number("keyed aggregate: Structured Streaming, in memory", median(seconds[IN_MEMORY]), "s/epoch"),
        in_turns("keyed aggregate / the same in Spark batch", seconds[OURS], seconds[BATCH], most=1.4),
        in_turns("keyed aggregate: faster than RocksDB by", seconds[ROCKSDB], seconds[OURS], least=2),
        in_turns("keyed aggregate: faster than Spark's state in memory by", seconds[IN_MEMORY], seconds[OURS]),
    ]


def seconds(folder: Path, source: Path, files: int) -> float:
    """Median seconds of Epochal's epochs over ``files`` files, without the first."""
    settings = engine.configuration(folder)
    with engine.engine_session(settings) as spark:
        times = engine.run_epochs(pipelines.aggregate(source), spark, folder, settings, files)
    return engine.warm(times, WARM)


def _ways(spark: SparkSession, folder: Path, settings: Configuration) -> Mapping[str, Way]:
    def ours(arrived: Path) -> list[float]:
        times = engine.run_epochs(pipelines.aggregate(arrived), spark, folder / "epochal", settings, EPOCHS)
        return [epoch.seconds for epoch in times]

    def streamed(name: str, store: Mapping[str, str]) -> Way:
        def stream(arrived: Path) -> list[float]:
            for option, value in store.items():
                spark.conf.set(option, value)
            return structured_streaming.aggregate(spark, arrived, folder / name)

        return stream

    def batch(arrived: Path) -> list[float]:
        took = structured_streaming.batch(spark, arrived)
        for file in arrived.iterdir():
            file.unlink()
        return took

    return {
        OURS: ours,
        BATCH: batch,
        ROCKSDB: streamed("rocksdb", structured_streaming.ROCKSDB),
        IN_MEMORY: streamed("in-memory", structured_streaming.IN_MEMORY),
    }


def _in_turns(folder: Path, ways: Mapping[str, Way], listed: Sequence[Path]) -> dict[str, list[float]]:
    """Median epoch of each counted turn, by way; their order alternates."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            arrived = folder / f"arrived-{name.replace(' ', '-')}"
            arrived.mkdir(exist_ok=True)
            for file in listed[turn * EPOCHS : (turn + 1) * EPOCHS]:
                (arrived / file.name).hardlink_to(file)
            found = ways[name](arrived)
            if len(found) != EPOCHS:
                raise RuntimeError(f"{name} took {len(found)} epochs for {EPOCHS} files")
            seconds[name].append(median(found[COLD:]))
    return {name: of_turns[1:] for name, of_turns in seconds.items()}
