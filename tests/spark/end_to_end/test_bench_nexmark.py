"""The queries of ``make bench-nexmark`` in Structured Streaming and in batch have the results of the oracles; streamed
queries with windows have them up to their watermark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from benchmarks import nexmark_batch
from benchmarks.nexmark import Parameters, schema, schema_text
from benchmarks.nexmark_page import MEASURED
from benchmarks.nexmark_streaming import CANNOT, NOT_IN_MEMORY, QUERIES, REFUSED, answer_seconds, events
from epochal.connectors import nexmark
from epochal.connectors.nexmark.source import NexmarkSource
from examples.nexmark.oracles import answer
from tests.spark.end_to_end.test_nexmark import KEYS

EVENTS, RATE, FILES = 6000, 100, 3
WINDOWS = ("q5", "q7", "q8", "q11")
SAMPLED = ("q9", "q15", "q19")


def test_every_query_is_compared_or_listed_as_unsupported() -> None:
    assert {*QUERIES, *CANNOT} == set(MEASURED)
    assert not set(QUERIES) & set(CANNOT)
    assert set(REFUSED) == set(CANNOT)
    assert set(NOT_IN_MEMORY) <= set(QUERIES)


def test_epochal_reads_and_writes_the_formats_of_the_other_engines(tmp_path: Path) -> None:
    parameters = Parameters(
        folder=str(tmp_path), schema_text=schema_text(), output=str(tmp_path / "out"), format="json"
    )
    source, sink = parameters.source(), parameters.sink(mode="updates")
    assert (source.kind, source.description["max_files"], source.description["format"]) == ("files", 2, "json")
    assert (sink.kind, sink.description["format"]) == ("files", "json")


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", [query if query in SAMPLED else pytest.param(query, marks=pytest.mark.long) for query in QUERIES]
)
@pytest.mark.alternating(4)
def test_structured_streaming_equals_the_oracle(spark: SparkSession, tmp_path: Path, query: str) -> None:
    oracle = answer(spark.read.parquet(write_input(spark, tmp_path)), query)
    streamed = events(spark, tmp_path / "input", schema(), 1)
    if query == "q12":  # the windows are those of the clock: their sum is compared
        assert_counts_by_bidder(spark, streamed, oracle, tmp_path)
        return
    seconds = answer_seconds(streamed, query, tmp_path)
    assert len(seconds) == FILES
    rows = spark.read.parquet(str(tmp_path / "output"))
    got, expected = newest(rows, query, oracle), counted(oracle)
    assert dict(rows.select(*oracle.columns).dtypes) == dict(oracle.dtypes)
    assert got
    if query in WINDOWS:
        assert not got - expected
    else:
        assert got == expected


def assert_counts_by_bidder(spark: SparkSession, streamed: DataFrame, oracle: DataFrame, folder: Path) -> None:
    mode, frame = QUERIES["q12"]
    assert mode == "append"
    running = frame(streamed).writeStream.outputMode("update").format("memory").queryName("by_the_clock")
    running = running.option("checkpointLocation", str(folder / "state")).trigger(availableNow=True)
    running.start().awaitTermination()
    windows = spark.table("by_the_clock").groupBy("bidder", "starttime").agg({"bid_count": "max"})
    got = windows.groupBy("bidder").agg({"max(bid_count)": "sum"})
    assert counted(got) == counted(oracle.groupBy("bidder").agg({"bid_count": "sum"}))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("query", sorted(REFUSED))
@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_structured_streaming_refuses_queries_that_are_listed(
    spark: SparkSession, tmp_path: Path, query: str, mode: str
) -> None:
    frame = REFUSED[query](events(spark, Path(write_input(spark, tmp_path)), schema(), 1))
    writer = frame.writeStream.outputMode(mode).format("noop").option("checkpointLocation", str(tmp_path / "state"))
    with pytest.raises(AnalysisException):
        writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [query if query in ("q7", "q18") else pytest.param(query, marks=pytest.mark.long) for query in MEASURED],
)
@pytest.mark.alternating(4)
def test_the_limit_equals_the_oracle_in_each_epoch(spark: SparkSession, tmp_path: Path, query: str) -> None:
    folder = Path(write_input(spark, tmp_path))
    seconds = nexmark_batch.answer_seconds(spark, folder, schema(), 1, query, tmp_path)
    assert len(seconds) == FILES
    files = sorted(folder.glob("*.parquet"))
    for number, file in enumerate(files):
        expected = answer(spark.read.parquet(str(file)), query)
        got = spark.read.parquet(str(tmp_path / "output" / f"epoch={number}"))
        columns = ("bidder",) if query == "q12" else expected.columns
        same = counted(got.select(*columns).distinct()) == counted(expected.select(*columns).distinct())
        assert same and (query == "q12" or counted(got.select(*columns)) == counted(expected))


def write_input(spark: SparkSession, folder: Path) -> str:
    """Write the events of one minute around midnight in three files."""
    first = "2015-07-14T23:59:40Z"
    source = nexmark.source(events=EVENTS, events_per_second=RATE, first_event_at=first).make()
    assert isinstance(source, NexmarkSource)
    share = EVENTS // FILES
    for number in range(FILES):
        rows = source.rows(spark, number * share, (number + 1) * share)
        rows.coalesce(1).write.mode("append").parquet(str(folder / "input"))
    return str(folder / "input")


def newest(rows: DataFrame, query: str, oracle: DataFrame) -> Counter[tuple[Any, ...]]:
    """The rows of all batches; of queries whose rows replace earlier rows, the last row of each key."""
    if "batch" not in rows.columns:
        return counted(rows.select(*oracle.columns))
    batches = sorted(rows.collect(), key=lambda row: row["batch"])
    last = {tuple(row[key] for key in KEYS[query]): tuple(row[name] for name in oracle.columns) for row in batches}
    return Counter(last.values())


def counted(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, frame.collect()))
