"""Every aggregate over every type and cut into epochs equals Spark's batch in type, scale, nullability and value."""

from __future__ import annotations

import random
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from epochal.state.shown import average_type, quotient, quotients
from tests.unit.property.every_cut import SLICE, streamed
from tests.unit.property.every_type import NUMBERS, TYPES, assert_equal_to_batch, few, plan_of, rows, some


def simple_aggregates() -> dict[str, str]:
    columns = {"all_rows": "count(*)", "some": "count_if(flag AND n > 0)", "share": "sum(n) / count(*)"}
    for name, (type, _) in TYPES.items():
        columns |= {f"count_{name}": f"count({name})", f"min_{name}": f"min({name})", f"max_{name}": f"max({name})"}
        if name in NUMBERS or name == "span":
            columns |= {f"sum_{name}": f"sum({name})", f"avg_{name}": f"avg({name})"}
        if type.endswith("int"):
            columns |= {f"{bit}_{name}": f"{bit}({name})" for bit in ("bit_and", "bit_or", "bit_xor")}
    columns |= {f"twice_{p}_{s}": f"avg(d_{p}_{s} * 2)" for p, s in [(10, 0), (23, 4), (24, 4), (26, 4), (28, 8)]}
    columns |= {function: f"{function}(flag)" for function in ("bool_and", "bool_or", "every", "some")}
    columns |= {"avg_text": "avg(CAST(tiny AS string))", "rounded": "round(avg(d_24_4) * 3, 2) + count(n)"}
    return columns


@pytest.mark.slow
@few
@given(st.integers(0, 2**32))
@pytest.mark.alternating(2)
def test_sums_averages_extremes_and_bits_equal_batch(spark: SparkSession, seed: int) -> None:
    choose = random.Random(seed)
    assert_equal_to_batch(rows(spark, choose), some(simple_aggregates(), choose))


def test_average_has_as_many_digits_as_in_spark(spark: SparkSession) -> None:
    values = ["1234567890.123456789012345678", "0.000000000000000001", "-7.1"]
    data = [("k", number, Decimal(value)) for number, value in enumerate(values)]
    frame = spark.createDataFrame(data, f"k string, {SLICE} int, v decimal(38,18)")
    row = streamed(plan_of(frame, {"mean": "avg(v)"}), frame).collect()[0]
    assert row.mean == Decimal("411522627.6744855963374485596667")


@given(st.data())
def test_quotient_of_numbers_equals_quotients_of_columns(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, precision))
    count = data.draw(st.integers(1, 2**40))
    total = data.draw(st.decimals(-(10 ** (precision - scale)) + 1, 10 ** (precision - scale) - 1, places=scale))
    type = average_type(f"decimal({max(precision - 10, 1)},{min(scale, max(precision - 10, 1))})")
    one = quotient(total, count, type)
    column = pa.array([total, total, None], pa.decimal128(precision, scale))
    try:
        many = quotients(column, pa.array([count, 0, count]), type)
    except OverflowError:
        whole, digits = (int(number) for number in type.removeprefix("decimal(").removesuffix(")").split(","))
        assert abs(one) >= Decimal(10) ** (whole - digits)
    else:
        assert many.to_pylist() == [one, None, None]
