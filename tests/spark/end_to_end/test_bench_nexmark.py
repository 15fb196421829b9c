"""The Structured Streaming queries of ``make bench-nexmark`` give the results of the oracles; those with windows
give them up to their watermark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from benchmarks.nexmark import MEASURED, Parameters, schema, schema_text
from benchmarks.nexmark_streaming import CANNOT, QUERIES, events
from epochal.connectors import nexmark
from epochal.connectors.nexmark.source import NexmarkSource
from examples.nexmark.oracles import answer

EVENTS, RATE = 6000, 100
WINDOWS = ("q5", "q7", "q8", "q11")


def test_every_measured_query_is_compared_or_listed_as_unsupported() -> None:
    assert {*QUERIES, *CANNOT} == set(MEASURED)
    assert not set(QUERIES) & set(CANNOT)


def test_epochal_reads_the_files_that_structured_streaming_reads(tmp_path: Path) -> None:
    source = Parameters(folder=str(tmp_path), schema_text=schema_text()).source()
    assert (source.kind, source.description["max_files"]) == ("files", 2)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("query", sorted(QUERIES))
def test_structured_streaming_equals_the_oracle(spark: SparkSession, tmp_path: Path, query: str) -> None:
    source = nexmark.source(events=EVENTS, events_per_second=RATE).make()
    assert isinstance(source, NexmarkSource)
    for number in range(3):
        rows = source.rows(spark, number * EVENTS // 3, (number + 1) * EVENTS // 3)
        rows.coalesce(1).write.mode("append").parquet(str(tmp_path / "input"))
    oracle = answer(spark.read.parquet(str(tmp_path / "input")), query)
    mode, streamed = QUERIES[query]
    writer = streamed(events(spark, tmp_path / "input", schema(), 1)).writeStream.outputMode(mode).format("memory")
    running = writer.queryName(query).option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True)
    running.start().awaitTermination()
    got, expected = counted(spark.table(query).select(*oracle.columns)), counted(oracle)
    assert got
    if mode == "update":
        assert set(expected) <= set(got)
    elif query in WINDOWS:
        assert not got - expected
    else:
        assert got == expected


def counted(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, frame.collect()))
