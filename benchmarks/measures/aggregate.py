"""A keyed count and sum, 20 epochs of a million rows over 200,000 keys, a durable snapshot after each."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks import engine, inputs, pipelines, structured_streaming
from benchmarks.result import Result, at_least, at_most, number
from benchmarks.sessions import session

FILES, ROWS, KEYS = 20, 1_000_000, 200_000
WARM = 3
HOW = f"{FILES} files of {ROWS:,} rows, {KEYS:,} keys, a file an epoch; median of epochs {WARM + 1} to {FILES}"


def run(folder: Path) -> list[Result]:
    source = inputs.write_files(folder / "input", FILES, ROWS, KEYS)
    with session(folder / "batch") as spark:
        batch = median(structured_streaming.batch(spark, source)[WARM:])
    with session(folder / "rocksdb", structured_streaming.ROCKSDB) as spark:
        rocksdb = median(structured_streaming.aggregate(spark, source, folder / "rocksdb" / "checkpoint")[WARM:])
    with session(folder / "in-memory", structured_streaming.IN_MEMORY) as spark:
        in_memory = median(structured_streaming.aggregate(spark, source, folder / "in-memory" / "checkpoint")[WARM:])
    ours = seconds(folder / "epochal", source, FILES)
    return [
        number("keyed aggregate: Epochal", ours, "s/epoch", HOW),
        number("keyed aggregate: the same in Spark batch, no state", batch, "s/epoch"),
        number("keyed aggregate: Structured Streaming, RocksDB", rocksdb, "s/epoch", "update mode, noop sink"),
        number("keyed aggregate: Structured Streaming, in memory", in_memory, "s/epoch", "update mode, noop sink"),
        at_least("keyed aggregate: faster than RocksDB by", rocksdb / ours, 2, "times"),
        at_most("keyed aggregate: of the batch's time", ours / batch, 1.4, "times"),
    ]


def seconds(folder: Path, source: Path, files: int) -> float:
    """Of an epoch of Epochal's, the median of those of ``files`` that count."""
    settings = engine.configuration(folder)
    with engine.engine_session(settings) as spark:
        times = engine.run_epochs(pipelines.aggregate(source), spark, folder, settings, files)
    return engine.warm(times, WARM)
