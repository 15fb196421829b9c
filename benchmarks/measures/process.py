"""A keyed Python function, called once per key, on the data of the aggregate."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks import engine, inputs, pipelines, structured_streaming
from benchmarks.result import Result, at_least, number
from benchmarks.sessions import session

FILES, ROWS, KEYS = 5, 1_000_000, 200_000
SMALLER = 20
"""PySpark's own is measured on an input this many times smaller, or it would take hours; both per row."""


def run(folder: Path) -> list[Result]:
    source = inputs.write_files(folder / "input", FILES, ROWS, KEYS)
    small = inputs.write_files(folder / "small", FILES, ROWS // SMALLER, KEYS // SMALLER)
    settings = engine.configuration(folder / "epochal")
    with engine.engine_session(settings) as spark:
        times = engine.run_epochs(pipelines.process(source), spark, folder / "epochal", settings, FILES)
    with session(folder / "pandas", structured_streaming.ROCKSDB) as spark:
        theirs = structured_streaming.process(spark, small, folder / "pandas" / "checkpoint")
    ours = engine.warm(times)
    small_epoch = median(theirs[2:])
    return [
        number("process: Epochal", ours, "s/epoch", f"{ROWS:,} rows, {KEYS:,} keys an epoch; median of {FILES - 2}"),
        number(
            "process: transformWithStateInPandas, RocksDB",
            small_epoch,
            "s/epoch",
            f"{ROWS // SMALLER:,} rows, {KEYS // SMALLER:,} keys an epoch: {SMALLER} times smaller",
        ),
        at_least("process: faster per row by", small_epoch * SMALLER / ours, 100, "times"),
    ]
