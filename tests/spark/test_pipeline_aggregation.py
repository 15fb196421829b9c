"""Aggregates over slices, merged, equal Spark's own batch query over all rows in values and types."""

from __future__ import annotations

import datetime
import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as SF
import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import MergeableAggregate, Partial, Pipeline
from epochal import functions as F
from epochal.aggregates.plan import AggregationPlan
from epochal.connectors import generator
from epochal.declarations.expressions import Expression, to_column
from epochal.errors import EpochAborted, PipelineError, SchemaError
from epochal.operators.aggregate.plan import AggregateOperator

SCHEMA = (
    "k string, n int, small tinyint, big bigint, price decimal(10,2), ratio double, text string, flag boolean, day date"
)
SLICES = 4


def operator_of(keys: Sequence[str] = ("k",), **columns: Any) -> AggregateOperator:
    pipeline = Pipeline("p")
    pipeline.read("s", generator.source({"k": "id"})).key_by(*keys).aggregate("totals", **columns)
    operator = pipeline.graph().operators[0].operator
    assert isinstance(operator, AggregateOperator)
    return operator


def rows(seed: int, count: int = 200) -> list[tuple[Any, ...]]:
    choose = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if choose.random() < 0.25 else value

    return [
        (
            choose.choice("abcdefgh"),
            maybe(choose.randrange(-50, 50)),
            maybe(choose.randrange(-100, 100)),
            maybe(choose.randrange(-(2**40), 2**40)),
            maybe(Decimal(choose.randrange(-99999, 99999)) / 100),
            maybe(choose.choice([0.5, -2.25, 8.0, 1.0])),
            maybe(choose.choice(["", "a", "b", "é", "Z"])),
            maybe(choose.random() < 0.5),
            maybe(datetime.date(2013, 1, 1 + choose.randrange(28))),
        )
        for _ in range(count)
    ] + [("only nulls", *[None] * 8)]


def after_slices(plan: AggregationPlan, slices: Sequence[DataFrame]) -> pa.Table:
    """The rows of the state table after the slices, with a dictionary in place of a store."""
    state: dict[Any, dict[str, Any]] = {}
    names = plan.table.value_schema.names
    for slice in slices:
        new = slice.groupBy(*plan.keys).agg(*plan.partial_columns()).toArrow()
        keys = list(zip(*(new[name].to_pylist() for name in plan.keys), strict=True))
        found = np.array([key in state for key in keys], dtype=bool)
        nothing = dict.fromkeys(names)
        old = pa.Table.from_pylist([state.get(key, nothing) for key in keys], schema=plan.table.value_schema)
        merged = plan.merge(found, old, new.select(names))
        assert merged.schema == plan.table.value_schema
        state |= dict(zip(keys, merged.to_pylist(), strict=True))
    full = [dict(zip(plan.keys, key, strict=True)) | values for key, values in state.items()]
    kept = pa.Table.from_pylist(full, schema=pa.schema([*plan.table.key_schema, *plan.table.value_schema]))
    for column, values in zip(plan.computed, plan.compute(kept.select(names)), strict=True):
        kept = kept.append_column(column.to_arrow(), values)
    return kept


def test_all_built_in_aggregates_equal_a_batch_query(spark: SparkSession) -> None:
    columns: dict[str, Any] = {
        "all_rows": F.count("*"),
        "with_n": "count(n)",
        "both": F.count_if(F.col("flag") & (F.col("n") > 0)),
        "sum_n": F.sum("n"),
        "sum_small": "sum(small)",
        "sum_big": F.sum("big"),
        "sum_price": F.sum("price"),
        "sum_ratio": F.sum("ratio"),
        "least": F.min("price"),
        "last_day": "max(day)",
        "last_text": F.max("text"),
        "any_flag": "bool_or(flag)",
        "all_flags": F.bool_and("flag"),
        "some_flag": "max(flag)",
        "bits": "bit_xor(big)",
        "mean_n": F.avg("n"),
        "mean_price": F.mean("price"),
        "mean_ratio": "avg(ratio)",
        "per_row": "sum(n) / count(*)",
        "filtered": "sum(n) FILTER (WHERE flag) + count(*) FILTER (WHERE n > 3)",
        "rounded": F.round(F.avg("price") * 2, 1),
        "cases": F.sum(F.when(F.col("text") == "a", F.col("n")).otherwise(1)),
        "spread": F.max("n") - F.min("n"),
        "in_text": "concat('sum(', cast(max(n) AS string), ')')",
        "pair": "struct(sum(n), count(DISTINCT n))",
        "day_of_most": F.max_by(F.col("day"), F.struct("n", "big", "day").getField("big")),
    }
    data = rows(3, 400)
    whole = spark.createDataFrame(data, SCHEMA)
    plan = operator_of(**columns).aggregation(whole.limit(0))
    plan = pickle.loads(pickle.dumps(plan))
    slices = [spark.createDataFrame(data[start::SLICES], SCHEMA) for start in range(SLICES)]
    got = plan.finish(spark.createDataFrame(after_slices(plan, slices))).orderBy("k")
    batch = [
        (SF.expr(given) if isinstance(given, str) else to_column(given)).alias(name) for name, given in columns.items()
    ]
    wanted = whole.groupBy("k").agg(*batch).orderBy("k")
    assert got.dtypes == wanted.dtypes
    for mine, sparks in zip(got.collect(), wanted.collect(), strict=True):
        assert mine.asDict() == sparks.asDict()


def test_state_columns_have_readable_names(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    plan = operator_of(mean=F.avg("n"), n="count(*)", share="sum(n) / count(n)").aggregation(frame)
    assert [(column.name, column.type) for column in plan.table.value] == [
        ("mean_sum", "double"),
        ("mean_count", "bigint"),
        ("n", "bigint"),
        ("share_1", "bigint"),
        ("share_2", "bigint"),
    ]
    assert plan.table.id == "totals"


@dataclass(frozen=True)
class LargestTwo(MergeableAggregate):
    """An author's aggregate: the two largest values."""

    argument: str

    def partials(self) -> tuple[Partial, ...]:
        top = F.slice(F.sort_array(F.collect_list(self.argument), asc=False), 1, 2)
        return (Partial("first", F.get(top, F.lit(0))), Partial("second", F.get(top, F.lit(1))))

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        first = pc.max_element_wise(old["first"], new["first"])
        loser = pc.min_element_wise(old["first"], new["first"], skip_nulls=False)
        return pa.table({"first": first, "second": pc.max_element_wise(loser, old["second"], new["second"])})

    def final(self, partials: Sequence[Expression]) -> Expression:
        return F.array_compact(F.array(*partials))


def test_aggregate_of_an_author_is_merged(spark: SparkSession) -> None:
    data = rows(5)
    whole = spark.createDataFrame(data, SCHEMA)
    plan = operator_of(top=LargestTwo("n")).aggregation(whole.limit(0))
    slices = [spark.createDataFrame(data[start::SLICES], SCHEMA) for start in range(SLICES)]
    got = {row.k: row.top for row in plan.finish(spark.createDataFrame(after_slices(plan, slices))).collect()}
    values: dict[str, list[int]] = {row[0]: [] for row in data}
    for row in data:
        values[row[0]] += [row[1]] if row[1] is not None else []
    assert got == {key: sorted(each, reverse=True)[:2] for key, each in values.items()}


def test_overflow_names_operator_and_column(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 2**62)], "k string, big bigint")
    plan = operator_of(total=F.sum("big")).aggregation(frame)
    with pytest.raises(EpochAborted, match=r"Operator 'totals', column 'total'.*bigint.*decimal\(38,0\)"):
        after_slices(plan, [frame, frame])


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        (F.count_distinct("n", "big"), "collect to_json(struct(..))"),
        ("count(DISTINCT *)", "collect to_json(struct(..))"),
        ("avg(DISTINCT n)", "avg(DISTINCT ..) cannot be merged: compute it from sum(DISTINCT v)"),
        ("string_agg(text)", "ListState"),
        (F.collect_list("n", limit=0), "the limit 0 is not between 1 and"),
        (F.first("n"), "F.first('v', order_by='time')"),
        ("last(n)", "max_by(v, time)"),
        (F.any_value("n"), "min(v)"),
        ("skewness(n)", "downstream"),
        ("median(n)", "percentile_approx(x, 0.5)"),
        ("percentile_approx(n, 2)", "the percentage 2 is not between 0 and 1"),
        ("percentile_approx(n, big)", "the percentage is big; it must be a number"),
        ("percentile_approx(n, 0.5, 100000)", "the accuracy 100000 is not between 1 and 20000"),
        (F.approx_count_distinct("n", rsd=0.5), "relative standard deviation 0.5"),
        ("stddev(n, big)", "does not take 2 arguments"),
        ("n + 1", "Use one of approx_count_distinct"),
        ("sum(n) OVER (PARTITION BY k)", "window function"),
        ("sum(n", "closing bracket"),
        (F.max_by("n"), "does not take 1 arguments"),
    ],
)
def test_unmergeable_aggregates_are_refused_when_declared(expression: Any, part: str) -> None:
    with pytest.raises(PipelineError) as caught:
        operator_of(bad=expression)
    assert "Operator 'totals', column 'bad'" in caught.value.message
    assert part in caught.value.message


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"bad": "sum(mm)"}, "there is no column mm"),
        ({"bad": "sum(text_)"}, "there is no column text_"),
        ({"bad": "max(array(n))"}, "max_by(value, struct(one, other))"),
        ({"bad": "max_by(n, struct(n, array(n)))"}, "have no order to merge by"),
        ({"good": "sum(n)", "bad": "sum(n, n)", "other": "count(*)"}, "column 'bad'"),
        ({"bad": "percentile_approx(text, 0.5)"}, "Cast the argument to double"),
        ({"mean": "avg(n)", "mean_sum": "sum(n)"}, "two columns of its state have the name 'mean_sum'"),
    ],
)
def test_aggregates_that_do_not_fit_the_input_are_refused_by_name(
    spark: SparkSession, columns: dict[str, Any], part: str
) -> None:
    with pytest.raises((PipelineError, SchemaError)) as caught:
        operator_of(**columns).aggregation(spark.createDataFrame([], SCHEMA))
    assert "Operator 'totals'" in caught.value.message
    assert part in caught.value.message


@pytest.mark.parametrize("function", ["max", "min"])
def test_max_by_and_min_by_sort_and_shuffle_the_value_once(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], function: str
) -> None:
    """The value is not copied, and no hash is computed of rows that are not selected."""
    frame = spark.createDataFrame(rows(1), SCHEMA)
    plan = operator_of(kept=f"{function}_by(struct(text, price), day)").aggregation(frame)
    frame.groupBy("k").agg(*plan.partial_columns()).explain()
    after = capsys.readouterr().out.partition("Exchange")[2]
    assert after.count(f"partial_{function}(") == 1 and "_by(" not in after and "xxhash64" not in after
    assert plan.table.value_schema.names == ["kept_value", "kept_order", "kept_tie"]
