"""A keyed Python function, called once per key, on the data of the aggregate.

It alternates, in the same JVM, with PySpark's two interfaces for such a function on a smaller input: over rows
(``transformWithState``) and over pandas frames (``transformWithStateInPandas``). All are compared per row, and the
ratio is to the faster of the two in each turn.
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
SMALLER = 20
"""Divisor of the input for PySpark's interfaces, which would take hours otherwise."""
TURNS, COLD = 2, 1
OURS, OVER_ROWS, OVER_FRAMES = "Epochal", "transformWithState", "transformWithStateInPandas"
EPOCHS = {OURS: 4, OVER_ROWS: 3, OVER_FRAMES: 3}
"""Files of each turn, the first of which is not counted, because attempts and queries begin cold."""

Way = Callable[[Path], list[float]]
"""Seconds of an epoch for each new file in the folder."""


def run(folder: Path) -> list[Result]:
    settings = engine.configuration(folder)
    small = inputs.write_files(folder / "small", TURNS * EPOCHS[OVER_ROWS], ROWS // SMALLER, KEYS // SMALLER)
    listed = {
        OURS: inputs.write_files(folder / "input", TURNS * EPOCHS[OURS], ROWS, KEYS),
        OVER_ROWS: small,
        OVER_FRAMES: small,
    }
    with engine.engine_session(settings) as spark:
        for option, value in structured_streaming.ROCKSDB.items():
            spark.conf.set(option, value)
        ways = _ways(spark, folder, settings)
        seconds = _in_turns(folder, ways, {name: sorted(files.iterdir()) for name, files in listed.items()})
    ours, best = seconds[OURS], [min(each) for each in zip(seconds[OVER_ROWS], seconds[OVER_FRAMES], strict=True)]
    how = f"{ROWS:,} rows, {KEYS:,} keys an epoch; the first of each turn is not counted"
    smaller = f"{ROWS // SMALLER:,} rows, {KEYS // SMALLER:,} keys an epoch: {SMALLER} times smaller"
    return [
        number("process: Epochal", median(ours), "s/epoch", how),
        number("process: transformWithState, RocksDB", median(seconds[OVER_ROWS]), "s/epoch", smaller),
        number("process: transformWithStateInPandas, RocksDB", median(seconds[OVER_FRAMES]), "s/epoch", smaller),
        in_turns("process: faster per row by", [each * SMALLER for each in best], ours, least=100),
    ]


def _ways(spark: SparkSession, folder: Path, settings: Configuration) -> Mapping[str, Way]:
    def ours(arrived: Path) -> list[float]:
        pipeline = pipelines.process(arrived)
        times = engine.run_epochs(pipeline, spark, folder / "epochal", settings, EPOCHS[OURS])
        return [epoch.seconds for epoch in times]

    def over_rows(arrived: Path) -> list[float]:
        return structured_streaming.process_rows(spark, arrived, folder / "rows" / "checkpoint")

    def over_frames(arrived: Path) -> list[float]:
        return structured_streaming.process_frames(spark, arrived, folder / "pandas" / "checkpoint")

    return {OURS: ours, OVER_ROWS: over_rows, OVER_FRAMES: over_frames}


def _in_turns(folder: Path, ways: Mapping[str, Way], listed: Mapping[str, Sequence[Path]]) -> dict[str, list[float]]:
    """Median epoch of each turn, by way; their order alternates."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            arrived = folder / f"arrived-{name}"
            arrived.mkdir(exist_ok=True)
            for file in listed[name][turn * EPOCHS[name] : (turn + 1) * EPOCHS[name]]:
                (arrived / file.name).hardlink_to(file)
            found = ways[name](arrived)
            if len(found) != EPOCHS[name]:
                raise RuntimeError(f"{name} took {len(found)} epochs for {EPOCHS[name]} files")
            seconds[name].append(median(found[COLD:]))
    return seconds
