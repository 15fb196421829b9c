"""The final result of every Nexmark pipeline equals its oracle, in one epoch and in several."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import examples.nexmark
from epochal import Pipeline, session, tumbling
from epochal.connectors import console, nexmark
from epochal.connectors.nexmark.source import NexmarkSource
from epochal.contracts.configuration import Configuration
from epochal.pipeline.artifact import load_graph
from epochal.pipeline.kinds import check_kinds
from epochal.testing import Harness
from examples.nexmark.oracles import QUERIES, answer

FOLDER = Path(examples.nexmark.__file__).parent
KEYS = {
    "q4": ("category",),
    "q6": ("seller",),
    "q9": ("id",),
    "q15": ("day",),
    "q16": ("channel", "day"),
    "q17": ("auction", "day"),
    "q18": ("auction", "bidder"),
    "q19": ("auction", "rank_number"),
}
"""Key columns of the queries whose rows replace earlier rows. The other queries append."""
CONFIGURATION = Configuration(state_backend="heap", parallelism=2, epoch_interval_seconds=0)
SAMPLED_QUERIES = ("q3", "q4", "q11", "q17", "q18")
BY_EVENT_TIME, BY_EPOCH_TIME = ("q5", "q7", "q11"), ("q12",)
"""Their output waits for a time, so that one more epoch is required after it."""

# About 50 minutes around midnight in two partitions, with late events. With few auctions in flight, many bids precede
# their auction; the skew makes some of them count.
OPTIONS: dict[str, Any] = {
    "events": 6000,
    "events_per_second": 2,
    "first_event_at": "2015-07-14T23:30:00Z",
    "partitions": 2,
    "skew": "2 minutes",
    "late_share": 0.1,
    "late_by": "90 seconds",
    "in_flight_auctions": 20,
}
DELAY = "4 minutes"
"""The delay of watermarks. No event is late: the harness's source has no partitions, so the skew is included."""
EVENING_OPTIONS = {**OPTIONS, "first_event_at": "2015-07-14T18:30:00Z"}
"""For q14, which depends on the time of day."""

TWENTY_EPOCHS = tuple(sorted({*range(0, 6001, 400), 3, 1501, 1502, 4001, 5999}))
"""Bounds of epochs of one event to several hundred."""
FIRST_EPOCH_AT, BETWEEN_EPOCHS = datetime(2026, 1, 1, tzinfo=UTC), timedelta(seconds=7)
LAST_EPOCH_AT = FIRST_EPOCH_AT + timedelta(hours=1)


def source_of(query: str) -> NexmarkSource:
    source = nexmark.source(**(EVENING_OPTIONS if query == "q14" else OPTIONS)).make()
    assert isinstance(source, NexmarkSource)
    return source


def streamed(spark: SparkSession, query: str, bounds: Sequence[int]) -> pa.Table:
    """The final output of the pipeline after one epoch for each pair of bounds."""
    source = source_of(query)
    graph = load_graph(FOLDER / f"{query}.py", {"delay": DELAY})
    with Harness(graph, spark, CONFIGURATION) as test:
        given = []
        for number, slice in enumerate(pairwise(bounds)):
            given.append(test.epoch(at=opened_at(number), events=source.rows(spark, *slice))[query])
            assert not test.counts.late_rows
        if query in BY_EPOCH_TIME:
            given.append(test.epoch(at=LAST_EPOCH_AT)[query])
        if query in BY_EVENT_TIME:
            given.append(test.drain()[query])
        return newest(query, given)


def opened_at(epoch: int) -> datetime:
    return FIRST_EPOCH_AT + epoch * BETWEEN_EPOCHS


def newest(query: str, given: Sequence[pa.Table]) -> pa.Table:
    """The final output of several epochs: the last row of each key."""
    if query not in KEYS:
        return pa.concat_tables(given)
    rows = {tuple(row[key] for key in KEYS[query]): row for table in given for row in table.to_pylist()}
    return pa.Table.from_pylist(list(rows.values()), given[0].schema)


def expected(spark: SparkSession, query: str, bounds: Sequence[int]) -> DataFrame:
    events = source_of(query).rows(spark, bounds[0], bounds[-1])
    if query in BY_EPOCH_TIME:
        slices = [source_of(query).rows(spark, *slice) for slice in pairwise(bounds)]
        dated = [rows.withColumn("epoch_time", F.lit(opened_at(number))) for number, rows in enumerate(slices)]
        events = reduce(DataFrame.union, dated)
    return answer(events, query)


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def assert_equal(spark: SparkSession, query: str, bounds: Sequence[int]) -> None:
    oracle = expected(spark, query, bounds).toArrow()
    got = streamed(spark, query, bounds)
    assert {field.name: field.type for field in got.schema} == {field.name: field.type for field in oracle.schema}
    assert oracle.num_rows > 0
    assert sorted_rows(got.select(oracle.column_names)) == sorted_rows(oracle)


@pytest.mark.slow
@pytest.mark.parametrize("query", SAMPLED_QUERIES)
@pytest.mark.alternating(3)
def test_a_query_equals_its_oracle(spark: SparkSession, query: str) -> None:
    assert_equal(spark, query, (0, 700, 2000))


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_can_write_to_a_folder(query: str, tmp_path: Path) -> None:
    graph = load_graph(FOLDER / f"{query}.py", {"output": str(tmp_path / "out")})
    check_kinds(graph)
    assert [node.description["kind"] for node in graph.sinks] == ["files"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("query", QUERIES)
def test_every_query_equals_its_oracle_for_any_division_into_epochs(spark: SparkSession, query: str) -> None:
    assert_equal(spark, query, (0, 6000))
    assert_equal(spark, query, TWENTY_EPOCHS)


@pytest.mark.slow
@pytest.mark.parametrize("query", [*(pytest.param(it, marks=pytest.mark.long) for it in ("q9", "q18")), "q19"])
def test_ties_are_resolved_as_in_the_oracle(spark: SparkSession, query: str) -> None:
    """Bids on one auction by two bidders, all at the same price, some at the same time."""
    begin = datetime(2015, 7, 15, tzinfo=UTC)
    soon = begin + timedelta(minutes=1)
    auction = (1000, "item", "description", 5, 10, soon, 1000, 10, "extra")
    events: list[tuple[Any, ...]] = [(1, None, auction, None, begin, 0)]
    for number in range(24):
        bid = (1000, 1001 + number % 2, 7, f"channel-{number % 3}", f"url-{number * 5 % 7}", f"extra-{number * 7 % 11}")
        events.append((2, None, None, bid, begin + timedelta(seconds=30 - number // 8), 0))
    source = source_of(query)
    graph = load_graph(FOLDER / f"{query}.py", {})
    with Harness(graph, spark, CONFIGURATION) as test:
        given = [test.epoch(events=slice)[query] for slice in (events[:9], events[9:17], events[17:])]
    oracle = answer(spark.createDataFrame(events, source.schema(spark)), query).toArrow()
    assert sorted_rows(newest(query, given).select(oracle.column_names)) == sorted_rows(oracle)


@pytest.mark.slow
@pytest.mark.long
def test_counted_and_late_bids_add_up_to_all_bids(spark: SparkSession) -> None:
    source = nexmark.source(**{**OPTIONS, "late_share": 0.05, "late_by": "20 minutes"}).make()
    assert isinstance(source, NexmarkSource)
    bounds = (0, 1000, 2000, 3000)
    outputs: dict[str, list[pa.Table]] = {}
    with Harness(bids_by_window(), spark, CONFIGURATION) as test:
        for begin, end in pairwise(bounds):
            collect(outputs, test.epoch(events=source.rows(spark, begin, end)))
        collect(outputs, test.drain())
    given = {name: pa.concat_tables(tables) for name, tables in outputs.items()}
    bids = answer(source.rows(spark, 0, bounds[-1]), "q0").count()
    for name in ("windows", "sessions"):
        late = given[f"late_for_{name}"]
        assert late.num_rows > 0
        assert sum(given[name]["bids"].to_pylist()) + late.num_rows == bids


def bids_by_window() -> Pipeline:
    """Bids counted in windows and in sessions, and bids that are too late for them."""
    pipeline = Pipeline("counts")
    events = pipeline.read("events", nexmark.source())
    bids = nexmark.bids(events).with_watermark("dateTime", "10 seconds")
    for name, windows in {"windows": tumbling("10 seconds"), "sessions": session("10 seconds")}.items():
        counted = bids.key_by("bidder").window(windows).aggregate(name, bids="count(*)")
        counted.write(name, console.sink())
        counted.late.write(f"late_for_{name}", console.sink())
    return pipeline


def collect(outputs: dict[str, list[pa.Table]], epoch: dict[str, pa.Table]) -> None:
    for name, table in epoch.items():
        outputs.setdefault(name, []).append(table)
