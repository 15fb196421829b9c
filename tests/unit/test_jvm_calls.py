"""How often a warm epoch calls the JVM: an upper bound for each shape, counted, so that no machine's load decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from benchmarks.jvm_calls import counted
from epochal import Pipeline
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.engine.spark_runner import SparkRunner
from epochal.pipeline.stream import Stream
from epochal.testing import Harness

Shape = Callable[[Stream], None]


def counts(rows: Stream, name: str, *keys: str) -> Stream:
    return rows.key_by(*keys).aggregate(name, rows="count(*)", total="sum(v)")


def one_operator_and_a_sink(rows: Stream) -> None:
    counts(rows, "by_k", "k").write("out", console.sink())


def nobody_reads_it(rows: Stream) -> None:
    counts(rows, "by_k", "k")


def something_between(rows: Stream) -> None:
    counts(rows, "by_k", "k").where("total > 0").write("out", console.sink())


def two_operators_and_two_sinks(rows: Stream) -> None:
    counts(rows, "by_k", "k").write("out", console.sink())
    counts(rows, "by_v", "v", "k").write("other", console.sink())


def calls_of_an_epoch(shape: Shape, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the second epoch of an attempt, while it runs its job."""
    found: list[int] = []
    run = SparkRunner.run

    def counting(runner: SparkRunner, *arguments: object) -> object:
        with counted() as calls:
            answers = run(runner, *arguments)  # type: ignore[arg-type]
        found.append(calls.total())
        return answers

    monkeypatch.setattr(SparkRunner, "run", counting)
    pipeline = Pipeline("shape")
    shape(pipeline.read("rows", generator.source({"k": "id % 3", "v": "id"})))
    with Harness(pipeline, spark) as test:
        for _ in range(2):
            test.epoch(rows=[(1, 2), (2, 3)])
    return found[1]


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        (one_operator_and_a_sink, 125),
        (nobody_reads_it, 125),
        (something_between, 195),
        (two_operators_and_two_sinks, 210),
    ],
)
def test_an_epoch_calls_the_jvm_no_more_often_than(
    shape: Shape, most: int, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert calls_of_an_epoch(shape, spark, monkeypatch) <= most


def test_its_calls_do_not_grow_with_the_verbs_between(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_verbs(rounds: int) -> int:
        def shape(rows: Stream) -> None:
            for number in range(rounds):
                rows = rows.with_columns(more=f"v + {number}").where(F.col("more") > 0).select("*", "1 AS one")
                rows = rows.drop("one")
            one_operator_and_a_sink(rows)

        return calls_of_an_epoch(shape, spark, monkeypatch)

    assert with_verbs(1) == with_verbs(4)
