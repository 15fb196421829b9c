"""A key/value store as a keyed function with durable or undurable state. The state of programs is always durable.

An epoch reads one file of calls, half of which write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks import engine
from benchmarks.engine import EpochTime
from benchmarks.sdg.key_value import VALUE
from epochal import Context, KeyedProcess, Pipeline, ValueState
from epochal.connectors import files
from epochal.contracts.configuration import Configuration

SCHEMA = "key string, value string"


class Store(KeyedProcess):
    """Puts the value of a row, or reads the key of a row without value."""

    values = ValueState("value string")
    output = "key string, value string"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[str, str | None]]:
        value = before = self.values.get()
        for row in rows:
            if row.value is None:
                yield key.key, value
            else:
                value = row.value
        if value is not before:
            self.values.set(value)


class StoreInCaches(Store):
    """The same store with state that is not durable."""

    values = ValueState("value string", durable=False)


def pipeline(folder: Path, durable: bool) -> Pipeline:
    pipeline = Pipeline("keyed-store")
    source = files.source(str(folder / "calls"), format="parquet", schema=SCHEMA, max_files=1)
    store = pipeline.read("calls", source).key_by("key").process(Store if durable else StoreInCaches, name="store")
    store.write("answers", files.sink(str(folder / "answers"), format="json"))
    return pipeline


def fill(folder: Path, durable: bool, keys: int, an_epoch: int, spark: SparkSession, settings: Configuration) -> None:
    """Create a store in ``folder`` with ``keys`` keys."""
    starts = range(0, keys, an_epoch)
    for start in starts:
        numbers = np.arange(start, min(start + an_epoch, keys), dtype=np.int64)
        _write(folder, numbers, start, len(numbers))
    engine.run_epochs(pipeline(folder, durable), spark, folder, settings, len(starts))


def called(
    folder: Path,
    durable: bool,
    keys: int,
    calls: int,
    epochs: int,
    seed: int,
    spark: SparkSession,
    settings: Configuration,
) -> list[EpochTime]:
    """Run the next ``epochs`` epochs of the store in ``folder``, each with ``calls`` calls over all ``keys``.

    Raises ``RuntimeError`` if an epoch has a wrong number of calls.
    """
    random = np.random.default_rng(seed)
    for number in range(epochs):
        _write(folder, random.integers(0, keys, calls, dtype=np.int64), seed * epochs + number, calls // 2)
    times = engine.run_epochs(pipeline(folder, durable), spark, folder, settings, epochs)
    if wrong := [each.rows for each in times if each.rows != calls]:
        raise RuntimeError(f"epochs have read {wrong} calls instead of {calls} each")
    return times


def _write(folder: Path, keys: np.ndarray, at: int, puts: int) -> None:
    """Write the next file of calls; its first ``puts`` calls write."""
    (folder / "calls").mkdir(parents=True, exist_ok=True)
    names = [f"key-{key}" for key in keys]
    values = [f"{name} {at} {VALUE}" for name in names[:puts]] + [None] * (len(names) - puts)
    number = len(list((folder / "calls").iterdir()))
    table = pa.table({"key": pa.array(names, pa.string()), "value": pa.array(values, pa.string())})
    pq.write_table(table, folder / "calls" / f"{number:08}.parquet")
