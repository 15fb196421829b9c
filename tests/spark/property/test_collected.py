"""Lists, sets, distinct counts and distinct sums equal Spark's as multisets for every cut into epochs; limits apply."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from epochal import Pipeline
from epochal import functions as F
from epochal.aggregates.collected import CollectedList, CollectedSet
from epochal.connectors import console, generator
from epochal.errors import EpochAborted
from epochal.pipeline.description import describe
from tests.unit.property.every_cut import SLICE, streamed
from tests.unit.property.every_type import NUMBERS, TYPES, assert_equal_to_batch, few, plan_of, rows, some

COLLECTED = [name for name in TYPES if not name.startswith("d_")] + ["d_10_0", "d_38_18"]


@pytest.mark.slow
@few
@given(st.integers(0, 2**32))
@pytest.mark.alternating(2)
def test_collected_values_equal_batch(spark: SparkSession, seed: int) -> None:
    mine: dict[str, Any] = {}
    sparks: dict[str, str] = {}
    for name in COLLECTED:
        mine |= {f"list_{name}": f"collect_list({name})", f"set_{name}": F.collect_set(name)}
        sparks |= {
            f"list_{name}": f"sort_array(collect_list({name}))",
            f"set_{name}": f"sort_array(collect_set({name}))",
        }
    for name in ("x", "text", "d_38_18", "span"):
        mine[f"distinct_{name}"] = sparks[f"distinct_{name}"] = f"count(DISTINCT {name})"
    for name in NUMBERS:
        mine[f"sum_{name}"] = sparks[f"sum_{name}"] = f"sum(DISTINCT {name})"
    mine["some"] = sparks["some"] = "count(DISTINCT n) FILTER (WHERE flag) / count(*)"
    mine["words"] = "transform(collect_list(DISTINCT text) FILTER (WHERE flag), x -> upper(x))"
    sparks["words"] = "transform(sort_array(collect_list(DISTINCT text) FILTER (WHERE flag)), x -> upper(x))"
    choose = random.Random(seed)
    assert_equal_to_batch(rows(spark, choose), some(mine, choose), sparks)


def test_exceeding_a_limit_names_operator_and_column(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 0, 1), ("a", 0, 2), ("a", 1, 2), ("a", 1, 3)], f"k string, {SLICE} int, v int")
    enough = streamed(plan_of(frame, {"seen": F.collect_set("v", limit=3)}), frame).collect()
    assert enough[0].seen == [1, 2, 3]
    with pytest.raises(EpochAborted) as raised:
        streamed(plan_of(frame, {"seen": F.collect_list("v", limit=3)}), frame)
    assert "Operator 'totals', column 'seen': collect_list has 4 values for one key" in raised.value.message
    assert "Set a higher limit=.." in raised.value.message


def test_description_warns_of_stored_distinct_values() -> None:
    pipeline = Pipeline("p")
    keyed = pipeline.read("rows", generator.source({"k": "id"})).key_by("k")
    keyed.aggregate("totals", n="count(*)", users=F.count_distinct("k")).write("out", console.sink())
    (warning,) = describe(pipeline.graph()).warnings
    assert warning.startswith(
        "Operator 'totals', column 'users': count_distinct(k) keeps all distinct values in the state"
    )
    assert "approx_count_distinct" in warning


def test_overflow_of_a_distinct_sum_names_operator_and_column(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("a", 0, 2**62), ("a", 1, 2**62), ("a", 2, 2**62 + 1)], f"k string, {SLICE} int, v bigint"
    )
    with pytest.raises(EpochAborted, match=r"Operator 'totals', column 'total': the sum does not fit into bigint"):
        streamed(plan_of(frame, {"total": "sum(DISTINCT v)"}), frame)


class TestMerge:
    """Merging of one aggregate, without Spark."""

    def merged(self, aggregate: CollectedList, old: Any, new: Any, type: pa.DataType) -> list[Any]:
        sides = [pa.table({"values": pa.chunked_array([side])}) for side in (old, new)]
        merged = aggregate.merge(*sides)["values"]
        assert merged.type == pa.list_(type)
        return merged.to_pylist()

    def test_lists_keep_duplicates_and_sets_do_not(self) -> None:
        old = pa.array([[], [1, 2], None, [5], None], pa.list_(pa.int32())).slice(1)
        new = pa.array([[2, 1], [4, 4], None, None], pa.list_(pa.int32()))
        argument = F.col("v")
        assert self.merged(CollectedList(argument, type="int"), old, new, pa.int32()) == [
            [1, 1, 2, 2],
            [4, 4],
            [5],
            [],
        ]
        assert self.merged(CollectedSet(argument, type="int"), old, new, pa.int32()) == [[1, 2], [4], [5], []]

    def test_values_behind_a_null_list_are_ignored(self) -> None:
        values = pa.array([7, 8, 9])
        old = pa.ListArray.from_arrays(pa.array([0, 2, 3]), values, mask=pa.array([True, False]))
        new = pa.array([[1], [2]], pa.list_(pa.int64()))
        assert self.merged(CollectedList(F.col("v"), type="bigint"), old, new, pa.int64()) == [[1], [2, 9]]

    @pytest.mark.parametrize("type", [pa.float32(), pa.float64()])
    def test_sets_have_one_zero_and_one_nan_which_is_last(self, type: pa.DataType) -> None:
        name = "float" if type == pa.float32() else "double"
        one, other = np.array([-0.0, np.inf, np.nan]), np.array([0.0, -np.nan, -np.inf])
        for old, new in ((one, other), (other, one)):
            sides = [pa.array([side.astype(type.to_pandas_dtype())], pa.list_(type)) for side in (old, new)]
            (kept,) = self.merged(CollectedSet(F.col("v"), type=name), *sides, type)
            assert [str(value) for value in kept] == ["-inf", "0.0", "inf", "nan"]

    def test_merging_no_rows_gives_no_rows(self) -> None:
        nothing = pa.array([], pa.list_(pa.string()))
        assert self.merged(CollectedSet(F.col("v"), type="string"), nothing, nothing, pa.string()) == []
