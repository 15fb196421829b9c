"""Nexmark's queries: every pipeline gives in the end what its oracle gives, in one epoch and in several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import examples.nexmark
from epochal.connectors import nexmark
from epochal.connectors.nexmark.source import NexmarkSource
from epochal.engine.settings import Configuration
from epochal.pipeline.artifact import load_graph
from epochal.testing import Harness
from examples.nexmark.oracles import QUERIES, answer

FOLDER = Path(examples.nexmark.__file__).parent
PIPELINES = tuple(query for query in QUERIES if (FOLDER / f"{query}.py").exists())
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
"""What a query's rows are new values of; those of the others stay."""
TOLD_BRIEFLY = ("q2", "q3", "q4", "q17", "q18")

# Some 50 minutes around midnight, in two partitions, with events that come late.
OPTIONS: dict[str, Any] = {
    "events": 6000,
    "events_per_second": 2,
    "first_event_at": "2015-07-14T23:30:00Z",
    "partitions": 2,
    "skew": "5 seconds",
    "late_share": 0.1,
    "late_by": "30 seconds",
}
IN_THE_EVENING = {**OPTIONS, "first_event_at": "2015-07-14T18:30:00Z"}
"""For q14, which asks for the time of day."""


def source_of(query: str) -> NexmarkSource:
    source = nexmark.source(**(IN_THE_EVENING if query == "q14" else OPTIONS)).make()
    assert isinstance(source, NexmarkSource)
    return source


def streamed(spark: SparkSession, query: str, bounds: Sequence[int]) -> pa.Table:
    """What the pipeline has given after an epoch from each bound to the next: of each key its newest row."""
    source = source_of(query)
    graph = load_graph(FOLDER / f"{query}.py", {})
    with Harness(graph, spark, Configuration(state_backend="heap", parallelism=2, epoch_interval_seconds=0)) as test:
        given = [test.epoch(events=source.rows(spark, *slice))[query] for slice in pairwise(bounds)]
    if query not in KEYS:
        return pa.concat_tables(given)
    newest = {tuple(row[key] for key in KEYS[query]): row for rows in given for row in rows.to_pylist()}
    return pa.Table.from_pylist(list(newest.values()), given[0].schema)


def expected(spark: SparkSession, query: str, end: int) -> DataFrame:
    return answer(source_of(query).rows(spark, 0, end), query)


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def assert_equal(spark: SparkSession, query: str, bounds: Sequence[int]) -> None:
    oracle = expected(spark, query, bounds[-1]).toArrow()
    got = streamed(spark, query, bounds)
    assert {field.name: field.type for field in got.schema} == {field.name: field.type for field in oracle.schema}
    assert oracle.num_rows > 0
    assert sorted_rows(got.select(oracle.column_names)) == sorted_rows(oracle)


@pytest.mark.slow
@pytest.mark.parametrize("query", TOLD_BRIEFLY)
def test_a_query_equals_its_oracle(spark: SparkSession, query: str) -> None:
    assert_equal(spark, query, (0, 700, 2000))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("query", PIPELINES)
def test_every_query_equals_its_oracle_however_its_events_are_cut(spark: SparkSession, query: str) -> None:
    assert_equal(spark, query, (0, 6000))
    assert_equal(spark, query, (0, 3, 1500, 1501, 4000, 6000))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("query", sorted(set(QUERIES) - set(PIPELINES)))
def test_the_oracles_without_a_pipeline_have_an_answer(spark: SparkSession, query: str) -> None:
    assert expected(spark, query, 6000).count() > 0
