"""How often a warm epoch calls the JVM, and the tasks that its job ends with: counted, so that no machine's load
decides."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from pyspark.sql import SparkSession

from benchmarks.jvm_calls import counted
from epochal import Pipeline
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.engine.job import Answers, EpochPlan
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


def counted_epoch(shape: Shape, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Answers]:
    """Of the second epoch of an attempt the calls, while it runs its job, and what came back."""
    found: list[tuple[int, Answers]] = []
    run = SparkRunner.run

    def counting(runner: SparkRunner, plan: EpochPlan, timeout_seconds: float) -> Answers:
        with counted() as calls:
            answers = run(runner, plan, timeout_seconds)
        found.append((calls.total(), answers))
        return answers

    monkeypatch.setattr(SparkRunner, "run", counting)
    pipeline = Pipeline("shape")
    shape(pipeline.read("rows", generator.source({"k": "id % 3", "v": "id"})))
    with Harness(pipeline, spark) as test:
        for _ in range(2):
            test.epoch(rows=[(1, 2), (2, 3)])
    return found[1]


@pytest.mark.parametrize(
    ("shape", "most", "answering"),
    [
        (one_operator_and_a_sink, 125, {0, 1}),
        (nobody_reads_it, 125, {0, 1}),
        (something_between, 195, range(2)),
        (two_operators_and_two_sinks, 210, {0, 1, 2, 3}),
    ],
)
def test_an_epoch_calls_the_jvm_no_more_often_than(
    shape: Shape, most: int, answering: Collection[int], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``answering``: without an end row where each branch of the job is an operator's task, and so without its task."""
    calls, answers = counted_epoch(shape, spark, monkeypatch)
    assert calls <= most
    assert answers.partitions == answering


def test_its_calls_do_not_grow_with_the_verbs_between(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_verbs(rounds: int) -> int:
        def shape(rows: Stream) -> None:
            for number in range(rounds):
                rows = rows.with_columns(more=f"v + {number}").where(F.col("more") > 0).select("*", "1 AS one")
                rows = rows.drop("one")
            one_operator_and_a_sink(rows)

        return counted_epoch(shape, spark, monkeypatch)[0]

    assert with_verbs(1) == with_verbs(4)
