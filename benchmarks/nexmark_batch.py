"""The limit of ``make bench-nexmark``: each query as a Spark batch without state over the files of one epoch.

A batch keeps nothing between epochs, and writes its rows to a Parquet folder of its own. A stateful engine reads, keeps
and writes more than this, so that the limit is a bound, and not a competitor.
"""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from benchmarks.nexmark_streaming import QUERIES
from examples.nexmark.oracles import answer

AS_STREAMED = frozenset({"q3", "q7", "q18", "q19"})
"""Queries whose text for Structured Streaming is also the quicker one in batch. The others have the oracle's text."""


def result(events: DataFrame, query: str) -> DataFrame:
    """The rows of a query over the events of one epoch."""
    if query in AS_STREAMED:
        return QUERIES[query][1](events)
    if query == "q12":  # processing time is the time of the epoch
        events = events.withColumn("epoch_time", F.current_timestamp())
    return answer(events, query)


def answer_seconds(
    spark: SparkSession, source: Path, schema: StructType, files_an_epoch: int, query: str, work: Path
) -> list[float]:
    """Run a query over the files of each epoch. Returns the seconds of each epoch."""
    files = sorted(map(str, source.glob("*.parquet")))
    seconds = []
    for number in range(len(files) // files_an_epoch):
        started = time.perf_counter()
        taken = files[number * files_an_epoch : (number + 1) * files_an_epoch]
        rows = result(spark.read.schema(schema).parquet(*taken), query)
        rows.write.parquet(str(work / "output" / f"epoch={number}"))
        seconds.append(time.perf_counter() - started)
    return seconds
