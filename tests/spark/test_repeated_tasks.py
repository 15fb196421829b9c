"""Repeated tasks and stages, as Spark reports them: only then are an epoch's files listed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochal.engine.spark_runner import SparkRunner
from epochal.tasks.steps import TaskRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPE = "stage int, attempt int"


def runs_of(spark: SparkSession, partitions: int = 3) -> list[TaskRun]:
    """The runs of the tasks of a job."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        run = TaskRun.current()
        assert run is not None
        yield pa.RecordBatch.from_pydict(
            {"stage": pa.array([run.stage], pa.int32()), "attempt": pa.array([run.attempt], pa.int32())}
        )

    rows = spark.range(0, partitions, 1, partitions).mapInArrow(task, TYPE).collect()
    assert len(rows) == partitions
    return [TaskRun(row["stage"], row["attempt"]) for row in rows]


def repeated(spark: SparkSession, runs: list[TaskRun | None]) -> bool:
    of: Any = SparkRunner.repeated
    return bool(of(SimpleNamespace(spark=spark), runs))


def test_first_runs_are_the_only_ones(spark: SparkSession) -> None:
    assert not repeated(spark, list(runs_of(spark)))


def test_second_attempt_of_a_task_is_a_repetition(spark: SparkSession) -> None:
    first, *others = runs_of(spark)
    assert repeated(spark, [first._replace(attempt=1), *others])


def test_run_that_is_not_known_may_be_a_repetition(spark: SparkSession) -> None:
    assert repeated(spark, [*runs_of(spark), None])
    assert repeated(spark, [TaskRun(1_000_000, 0)])  # Spark keeps a limited number of stages
