"""The number of JVM calls of a warm epoch, and the tasks that end its job; independent of the machine's load."""

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


def no_sink(rows: Stream) -> None:
    counts(rows, "by_k", "k")


def filter_before_the_sink(rows: Stream) -> None:
    counts(rows, "by_k", "k").where("total > 0").write("out", console.sink())


def two_operators_and_two_sinks(rows: Stream) -> None:
    counts(rows, "by_k", "k").write("out", console.sink())
    counts(rows, "by_v", "v", "k").write("other", console.sink())


def counted_epoch(shape: Shape, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Answers]:
    """The number of calls that the second epoch of an attempt makes while it runs its job, and the job's answers."""
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
        (no_sink, 125, {0, 1}),
        (filter_before_the_sink, 195, range(2)),
        (two_operators_and_two_sinks, 210, {0, 1, 2, 3}),
    ],
)
def test_epoch_stays_within_the_maximum_number_of_jvm_calls(
    shape: Shape, most: int, answering: Collection[int], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``answering``: the partitions with answers. If each branch of the job is the task of an operator, there is no
    end row and no task for it."""
    calls, answers = counted_epoch(shape, spark, monkeypatch)
    assert calls <= most
    assert answers.partitions == answering


def test_jvm_calls_do_not_grow_with_the_number_of_verbs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_verbs(rounds: int) -> int:
        def shape(rows: Stream) -> None:
            for number in range(rounds):
                rows = rows.with_columns(more=f"v + {number}").where(F.col("more") > 0).select("*", "1 AS one")
                rows = rows.drop("one")
            one_operator_and_a_sink(rows)

        return counted_epoch(shape, spark, monkeypatch)[0]

    assert with_verbs(1) == with_verbs(4)
