"""Recorded expressions: their text, their replay as Spark's own, and refusals."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyspark.sql.functions as SF
import pytest
from pyspark.sql import SparkSession

from epochal import functions as F
from epochal.declarations.expressions import as_expression, to_column, with_spark
from epochal.errors import PipelineError


def test_expressions_are_shown_as_an_author_writes_them() -> None:
    assert str(F.sum("delay") / F.count("*")) == "(sum(delay) / count(*))"
    assert str(2 * F.col("x")) == "(2 * x)"
    assert str(F.when(F.col("x") > 1, "late").otherwise("in time")) == "when((x > 1), late).otherwise(in time)"


@pytest.mark.parametrize(
    "make",
    [
        lambda f: f.col("x") + 1,
        lambda f: 10 - f.col("x"),
        lambda f: -(f.col("x") * 2) % 7,
        lambda f: f.when((f.col("x") > 2) & ~(f.col("s") == "b"), f.lit("A")).otherwise(f.upper("s")),
        lambda f: f.coalesce(f.col("s"), f.lit("none")).substr(1, 2),
        lambda f: f.col("x").between(2, 3) | f.col("s").isNull(),
        lambda f: f.transform(f.array("x", f.lit(5)), lambda each: each + f.lit(1)),
        lambda f: f.struct("x", "s")["x"].cast("string"),
        lambda f: f.round(f.col("x") / 3, 2),
        lambda f: f.udf(lambda value: value * 2, "bigint")("x"),
    ],
)
def test_recorded_expressions_equal_those_of_spark(spark: SparkSession, make: Callable[[Any], Any]) -> None:
    frame = spark.createDataFrame([(1, "a"), (2, "b"), (3, None)], "x long, s string")
    recorded = make(F)
    recorded_again = recorded if "lambda" in str(recorded) else pickle.loads(pickle.dumps(recorded))
    got = frame.select(to_column(recorded_again).alias("value"))
    assert got.collect() == frame.select(make(SF).alias("value")).collect()


def test_functions_inside_transform_are_those_of_spark(spark: SparkSession) -> None:
    with with_spark():
        frame = spark.range(4).where(F.col("id") > 1)
    assert frame.count() == 2


def test_error_messages_name_the_fix(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="use & for 'and'"):
        assert F.col("x") > 1 and F.col("x") < 3
    with pytest.raises(PipelineError, match="from epochal import functions as F"):
        as_expression("where", SF.col("x") > 1)
    with pytest.raises(PipelineError, match="Did you mean 'upper'"):
        to_column(F.uper("x"))
    with pytest.raises(AttributeError):
        _ = F.__wrapped__
