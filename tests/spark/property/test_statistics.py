"""Variances, covariances and correlations equal Spark's, ties depend only on the rows, and sketches stay within
their error bounds, for every cut into epochs."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as SF
from pyspark.sql.types import ArrayType, LongType

from epochal import functions as F
from tests.unit.property.every_cut import SHOWN, SLICE, SLICES, streamed
from tests.unit.property.every_type import TYPES, assert_equal_to_batch, few, plan_of, rows, some

STATISTICS = {
    **{f"sd_{name}": f"stddev({name})" for name in ("tiny", "n", "x", "single", "d_24_4")},
    "sd_pop": "stddev_pop(x)",
    "sd_text": "stddev_samp(CAST(tiny AS string))",
    "var": "variance(n)",
    "var_big": "var_samp(big)",
    "var_pop": "var_pop(d_10_0)",
    "far": "std(1000000000 + tiny)",
    "some": "var_pop(n) FILTER (WHERE flag)",
    "covar": "covar_samp(n, tiny)",
    "covar_pop": "covar_pop(x, n)",
    "corr": "corr(n, big)",
    "corr_x": "corr(x, tiny)",
    "corr_some": "corr(tiny, small) FILTER (WHERE flag)",
    "alone": "corr(7, tiny)",
    "ratio": "stddev(n) / avg(n)",
}


@pytest.mark.slow
@few
@given(st.integers(0, 2**32))
@pytest.mark.alternating(2)
def test_variances_covariances_and_correlations_equal_batch(spark: SparkSession, seed: int) -> None:
    # With an infinity, Spark's covariance depends on the order of rows.
    sparks = STATISTICS | {"covar_pop": "covar_pop(CASE WHEN abs(x) < double('inf') THEN x ELSE x - x END, n)"}
    choose = random.Random(seed)
    assert_equal_to_batch(rows(spark, choose), some(STATISTICS, choose), sparks)


def test_covariance_with_an_infinity_is_nan_in_any_order(spark: SparkSession) -> None:
    data = [("last", 0, 1.0, 1.0), ("last", 1, math.inf, 2.0), ("first", 0, math.inf, 2.0), ("first", 1, 1.0, 1.0)]
    frame = spark.createDataFrame(data, "k string, slice int, x double, y double")
    got = streamed(plan_of(frame, {"c": "covar_pop(x, y)", "r": "corr(x, y)"}), frame).toArrow()
    assert all(map(math.isnan, (*got["c"].to_pylist(), *got["r"].to_pylist()))), got


@pytest.mark.slow
@few
@given(st.integers(0, 2**32))
@pytest.mark.alternating(2)
def test_ties_depend_only_on_the_rows(spark: SparkSession, seed: int) -> None:
    mine: dict[str, Any] = {}
    sparks: dict[str, str] = {}
    for name in TYPES:
        for function, twin in (("max_by", F.last), ("min_by", F.first)):
            place = f"CASE WHEN flag IS NOT NULL THEN struct(flag, {name}) END"
            mine |= {
                f"{function}_{name}": f"{function}({name}, flag)",
                f"{function}_{name}_2": twin(name, order_by="flag"),
            }
            sparks |= dict.fromkeys((f"{function}_{name}", f"{function}_{name}_2"), f"{function}({name}, {place})")
    mine["by_x"], sparks["by_x"] = "max_by(text, x)", "max_by(text, CASE WHEN x IS NOT NULL THEN struct(x, text) END)"
    mine["known"] = F.last("n", ignorenulls=True, order_by="day")
    sparks["known"] = "max_by(n, CASE WHEN n IS NOT NULL AND day IS NOT NULL THEN struct(day, n) END)"
    choose = random.Random(seed)
    assert_equal_to_batch(rows(spark, choose), some(mine, choose), sparks)


@pytest.mark.slow
@few
@given(st.integers(0, 2**32))
@pytest.mark.alternating(2)
def test_order_by_several_columns_equals_batch(spark: SparkSession, seed: int) -> None:
    mine: dict[str, Any] = {
        "latest": "max_by(text, struct(day, flag, x))",
        "first_of": F.first("n", order_by=["day", "text"]),
        "nested": "min_by(flag, struct(struct(x, text) AS inner, day))",
        "known": F.last("n", ignorenulls=True, order_by=("flag", "x")),
    }
    sparks = {
        "latest": "max_by(text, struct(day, flag, x, text))",
        "first_of": "min_by(n, struct(day, text, n))",
        "nested": "min_by(flag, struct(struct(x, text), day, flag))",
        "known": "max_by(n, CASE WHEN n IS NOT NULL THEN struct(flag, x, n) END)",
    }
    choose = random.Random(seed)
    assert_equal_to_batch(rows(spark, choose), mine, sparks)


@pytest.mark.alternating(2)
def test_sketches_stay_within_their_error_bounds(spark: SparkSession) -> None:
    number = SF.col("id")
    frame = spark.range(0, 40_000, 1, 2).select(
        SF.when(number % 40 == 0, "few").when(number % 2 == 0, "many").otherwise("null").alias("k"),
        SF.expr(f"CAST(pmod(hash(id, 1), {SLICES}) AS int)").alias(SLICE),
        SF.when(number % 2 == 0, number).alias("v"),
        SF.when(number % 2 == 0, number % 3000).alias("some"),
    )
    columns: dict[str, Any] = {
        "distinct": "approx_count_distinct(v)",
        "precise": F.approx_count_distinct("some", rsd=0.01),
        "dates": "approx_count_distinct(date_from_unix_date(CAST(some AS int)))",
        "median": "percentile_approx(v, 0.5)",
        "coarse": F.percentile_approx("v", [0.0, 0.1, 0.9, 1.0], 100),
        "filtered": "approx_percentile(v, array(0.25, 0.75), 1000) FILTER (WHERE v >= 20000)",
        "when": "percentile_approx(timestamp_seconds(v), 0.5)",
        "price": "percentile_approx(CAST(v AS decimal(15,2)), 0.5)",
        "day": "percentile_approx(date_from_unix_date(CAST(some AS int)), 0.5)",
    }
    got = streamed(plan_of(frame, columns), frame)
    assert got.select("distinct", "median", "when", "price", "day", "coarse").dtypes[1:] == [
        ("median", "bigint"),
        ("when", "timestamp"),
        ("price", "decimal(15,2)"),
        ("day", "date"),
        ("coarse", "array<bigint>"),
    ]
    assert got.schema["coarse"].dataType == ArrayType(LongType(), containsNull=False)
    values = {
        "few": list(range(0, 40_000, 40)),
        "many": [each for each in range(0, 40_000, 2) if each % 40],
        "null": [],
    }
    for row in got.collect():
        for name in columns:
            if name != "filtered":
                assert row[SHOWN + name] == row[name], (name, row)
        expected = values[row["k"]]
        some = len({each % 3000 for each in expected})
        assert abs(row.distinct - len(expected)) <= 5 * 0.05 * len(expected), row
        assert abs(row.precise - some) <= 5 * 0.01 * some, row
        assert abs(row.dates - some) <= 5 * 0.05 * some, row
        if not expected:
            assert (row.median, row.coarse, row.filtered, row.when) == (None, None, None, None)
            continue

        def rank(value: Any, among: list[int]) -> float:
            return sum(each <= value for each in among) / len(among)

        assert abs(rank(row.median, expected) - 0.5) <= 2e-3, row
        assert [rank(value, expected) for value in row.coarse] == pytest.approx([0, 0.1, 0.9, 1], abs=0.02), row
        upper = [each for each in expected if each >= 20_000]
        assert [rank(value, upper) for value in row.filtered] == pytest.approx([0.25, 0.75], abs=5e-3), row
        assert int(row.price) == row.median == int(row.when.timestamp())


def test_sketches_of_few_values_are_merged(spark: SparkSession) -> None:
    """Sketches of no rows, of nulls and of one value, on either side."""
    frame = spark.createDataFrame(
        [("a", 0, None), ("a", 1, 5.0), ("b", 0, float("nan")), ("b", 1, float("nan"))], "k string, slice int, v double"
    )
    got = streamed(plan_of(frame, {"n": "approx_count_distinct(v)", "p": "percentile_approx(v, 0.5)"}), frame).toArrow()
    assert set(zip(*(got[name].to_pylist() for name in ("k", "n", "p")), strict=True)) == {
        ("a", 1, 5.0),
        ("b", 1, None),
    }
    assert got.schema.field("p").type == pa.float64()
