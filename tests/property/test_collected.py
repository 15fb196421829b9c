"""Lists, sets, distinct counts and sums equal Spark's as multisets, over every cut into epochs; limits are told."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from epochal import Pipeline
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.errors import EpochAborted
from epochal.pipeline.description import describe
from tests.property.every_cut import SLICE, streamed
from tests.property.every_type import NUMBERS, TYPES, assert_equal_to_batch, few, plan_of, rows

SUMMED = [name for name in NUMBERS if not name.startswith(("d_28", "d_30", "d_38"))]


@pytest.mark.slow
@few
@given(st.integers(0, 2**32))
def test_collected_values(spark: SparkSession, seed: int) -> None:
    mine: dict[str, Any] = {}
    sparks: dict[str, str] = {}
    for name in TYPES:
        mine |= {f"list_{name}": f"collect_list({name})", f"set_{name}": F.collect_set(name)}
        sparks |= {
            f"list_{name}": f"sort_array(collect_list({name}))",
            f"set_{name}": f"sort_array(collect_set({name}))",
        }
        mine[f"distinct_{name}"] = sparks[f"distinct_{name}"] = f"count(DISTINCT {name})"
    for name in SUMMED:
        mine[f"sum_{name}"] = sparks[f"sum_{name}"] = f"sum(DISTINCT {name})"
    mine["some"] = sparks["some"] = "count(DISTINCT n) FILTER (WHERE flag) / count(*)"
    assert_equal_to_batch(rows(spark, random.Random(seed)), mine, sparks)


def test_a_limit_that_is_reached_names_operator_and_column(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 0, 1), ("a", 0, 2), ("a", 1, 2), ("a", 1, 3)], f"k string, {SLICE} int, v int")
    enough = streamed(plan_of(frame, {"seen": F.collect_set("v", limit=3)}), frame).collect()
    assert enough[0].seen == [1, 2, 3]
    with pytest.raises(EpochAborted) as raised:
        streamed(plan_of(frame, {"seen": F.collect_list("v", limit=3)}), frame)
    assert "Operator 'totals', column 'seen': collect_list has 4 values of one key" in raised.value.message
    assert "Say limit=.." in raised.value.message


def test_what_they_cost_is_a_warning() -> None:
    pipeline = Pipeline("p")
    keyed = pipeline.read("rows", generator.source({"k": "id"})).key_by("k")
    keyed.aggregate("totals", n="count(*)", users=F.count_distinct("k")).write("out", console.sink())
    (warning,) = describe(pipeline.graph()).warnings
    assert warning.startswith("Operator 'totals', column 'users': count_distinct(k) keeps all values in the state")
    assert "approx_count_distinct" in warning
