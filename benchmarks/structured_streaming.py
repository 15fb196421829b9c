"""Spark's Structured Streaming on the same input, as a baseline.

Settings are those of a careful user: as many shuffle partitions as cores, no adaptive execution, and changelog
checkpoints for RocksDB.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.inputs import SCHEMA

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Uploads the changes of a micro-batch instead of all files, as Spark's guide recommends for large state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
IN_MEMORY = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    )
}

PROCESSED = "key long, rows long, total long"


def aggregate(spark: SparkSession, folder: Path, checkpoint: Path) -> list[float]:
    """Count and sum per key, one file for each micro-batch. Returns Spark's seconds of each micro-batch."""
    counted = _stream(spark, folder).groupBy("key").agg(F.count("*").alias("rows"), F.sum("value").alias("total"))
    return _run(counted, checkpoint)


class CountRows(StatefulProcessor):
    """The keyed Python function over rows: a count and a sum in one value state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", "rows long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count, total = self._state.get() or (0, 0)
        for row in rows:
            count, total = count + 1, total + row.value
        self._state.update((count, total))
        yield Row(key=key[0], rows=count, total=total)

    def close(self) -> None:
        pass


class CountFrames(StatefulProcessor):
    """The keyed Python function over pandas frames."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", "rows long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        count, total = self._state.get() or (0, 0)
        for frame in rows:
            count, total = count + len(frame), total + int(frame["value"].sum())
        self._state.update((count, total))
        yield pd.DataFrame({"key": [key[0]], "rows": [count], "total": [total]})

    def close(self) -> None:
        pass


def process_rows(spark: SparkSession, folder: Path, checkpoint: Path) -> list[float]:
    """``transformWithState`` with :class:`CountRows`. Seconds per micro-batch."""
    counted = (
        _stream(spark, folder)
        .groupBy("key")
        .transformWithState(CountRows(), outputStructType=PROCESSED, outputMode="update", timeMode="none")
    )
    return _run(counted, checkpoint)


def process_frames(spark: SparkSession, folder: Path, checkpoint: Path) -> list[float]:
    """``transformWithStateInPandas`` with :class:`CountFrames`. Seconds per micro-batch."""
    counted = (
        _stream(spark, folder)
        .groupBy("key")
        .transformWithStateInPandas(CountFrames(), outputStructType=PROCESSED, outputMode="update", timeMode="none")
    )
    return _run(counted, checkpoint)


def batch(spark: SparkSession, folder: Path) -> list[float]:
    """The same aggregation of each file as a batch without state. Seconds per file."""
    took = []
    for file in sorted(folder.glob("*.parquet")):
        started = time.perf_counter()
        counted = spark.read.schema(SCHEMA).parquet(str(file)).groupBy("key")
        counted.agg(F.count("*").alias("rows"), F.sum("value").alias("total")).write.format("noop").mode(
            "overwrite"
        ).save()
        took.append(time.perf_counter() - started)
    return took


def _stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


def _run(frame: DataFrame, checkpoint: Path) -> list[float]:
    query = (
        frame.writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [
        progress["durationMs"]["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]
