"""Every aggregate over every type and every cut into epochs equals Spark's batch: type, scale, nullability, value."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.connectors import generator
from epochal.pipeline.aggregation import AggregationPlan, plan_aggregation
from epochal.pipeline.graph import AggregateNode
from epochal.state.quotients import average_type, quotient, quotients
from tests.property.every_cut import CUT, SLICE, SLICES, batch, streamed

KEYS = 20
ROWS = 400
DECIMALS = [
    (4, 2),
    (10, 0),
    (18, 18),
    (23, 4),
    (24, 4),
    (26, 4),
    (28, 8),
    (30, 10),
    (38, 0),
    (38, 18),
    (38, 36),
    (38, 38),
]
Draw = Callable[[random.Random], Any]


def decimal(precision: int, scale: int) -> Draw:
    """Values whose sum and average still have a type: three digits are left before the point, or four."""
    digits = min(precision, 34 if scale < 34 else precision - 4)

    def draw(choose: random.Random) -> Decimal:
        return Decimal(choose.randrange(-(10**digits), 10**digits) // 10 ** choose.randrange(digits)).scaleb(-scale)

    return draw


def whole(bits: int) -> Draw:
    return lambda choose: choose.randrange(-(1 << bits - 1), 1 << bits - 1) >> choose.randrange(bits)


def floating(choose: random.Random) -> float:
    return choose.choice(
        [choose.gauss(0, 1e3), choose.gauss(1e9, 1), 0.1, -0.0, 0.0] * 9 + [math.inf, math.nan, -math.inf]
    )


def moment(choose: random.Random) -> datetime:
    return datetime(1965, 1, 1, tzinfo=UTC) + timedelta(microseconds=choose.randrange(3 * 10**15))


TYPES: dict[str, tuple[str, Draw]] = {
    "tiny": ("tinyint", whole(8)),
    "small": ("smallint", whole(16)),
    "n": ("int", whole(32)),
    "big": ("bigint", whole(56)),
    "single": ("float", floating),
    "x": ("double", floating),
    **{f"d_{p}_{s}": (f"decimal({p},{s})", decimal(p, s)) for p, s in DECIMALS},
    "text": ("string", lambda choose: choose.choice(["", "a", "B", "é", "ab", "\U0001f600", "７"])),
    "bytes": ("binary", lambda choose: choose.randbytes(choose.randrange(3))),
    "flag": ("boolean", lambda choose: choose.random() < 0.8),
    "day": ("date", lambda choose: date(1965, 1, 1) + timedelta(days=choose.randrange(40_000))),
    "at": ("timestamp", moment),
    "local": ("timestamp_ntz", lambda choose: moment(choose).replace(tzinfo=None)),
}
NUMBERS = [name for name, (type, _) in TYPES.items() if type.startswith(("tiny", "small", "int", "big", "float", "d"))]
NUMBERS.remove("day")


def rows(spark: SparkSession, choose: random.Random) -> DataFrame:
    """Keys with few and many rows, in some or all slices; some keys and some columns only null."""
    schema = ", ".join(["k string", f"{SLICE} int", *(f"{name} {type}" for name, (type, _) in TYPES.items())])
    nulls = {f"k{number}": choose.choice([0, 0.1, 0.6, 1]) for number in range(KEYS)}
    data = []
    for _ in range(ROWS):
        key = f"k{min(int(choose.expovariate(0.15)), KEYS - 1)}"
        values = [None if choose.random() < nulls[key] else draw(choose) for _, draw in TYPES.values()]
        data.append((key, choose.randrange(SLICES), *values))
    return spark.createDataFrame(data, schema).coalesce(1).cache()


def plan_of(frame: DataFrame, columns: dict[str, Any]) -> AggregationPlan:
    pipeline = Pipeline("p")
    pipeline.read("s", generator.source({"k": "id"})).key_by("k").aggregate("totals", **columns)
    node = pipeline.graph().operators[0]
    assert isinstance(node, AggregateNode)
    return plan_aggregation(node, frame.limit(0))


def assert_equal_to_batch(frame: DataFrame, columns: dict[str, Any]) -> None:
    plan = plan_of(frame, columns)
    got, expected = streamed(plan, frame), batch(frame, columns)
    mine = {field.name: (field.dataType, field.nullable) for field in got.schema if field.name not in (CUT, "k")}
    sparks = {field.name: (field.dataType, field.nullable) for field in expected.schema if field.name != "k"}
    assert mine == sparks
    answers = {row["k"]: row.asDict() for row in expected.collect()}
    collected = got.collect()
    assert len(collected) == len(answers) * 2 ** (SLICES - 1)
    for row in collected:
        answer = answers[row["k"]]
        for name in columns:
            assert same(row[name], answer[name]), (row["k"], row[CUT], name, row[name], answer[name])


def same(left: Any, right: Any) -> bool:
    """Doubles within 1e-9; the absolute tolerance is for sums of numbers up to 1e9 that nearly cancel out."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-5) or (left != left and right != right)
    return bool(left == right)


def simple_aggregates() -> dict[str, str]:
    columns = {"all_rows": "count(*)", "some": "count_if(flag AND n > 0)", "share": "sum(n) / count(*)"}
    for name, (type, _) in TYPES.items():
        columns |= {f"count_{name}": f"count({name})", f"min_{name}": f"min({name})", f"max_{name}": f"max({name})"}
        if name in NUMBERS:
            columns |= {f"sum_{name}": f"sum({name})", f"avg_{name}": f"avg({name})"}
        if type.endswith("int"):
            columns |= {f"{bit}_{name}": f"{bit}({name})" for bit in ("bit_and", "bit_or", "bit_xor")}
    columns |= {f"twice_{p}_{s}": f"avg(d_{p}_{s} * 2)" for p, s in [(10, 0), (23, 4), (24, 4), (26, 4), (28, 8)]}
    columns |= {function: f"{function}(flag)" for function in ("bool_and", "bool_or", "every", "some")}
    columns |= {"avg_text": "avg(CAST(tiny AS string))", "rounded": "round(avg(d_24_4) * 3, 2) + count(n)"}
    return columns


few = settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.slow
@few
@given(st.integers(0, 2**32))
def test_sums_averages_extremes_and_bits(spark: SparkSession, seed: int) -> None:
    assert_equal_to_batch(rows(spark, random.Random(seed)), simple_aggregates())


def test_an_average_keeps_all_digits_that_sparks_has(spark: SparkSession) -> None:
    values = ["1234567890.123456789012345678", "0.000000000000000001", "-7.1"]
    data = [("k", number, Decimal(value)) for number, value in enumerate(values)]
    frame = spark.createDataFrame(data, f"k string, {SLICE} int, v decimal(38,18)")
    row = streamed(plan_of(frame, {"mean": "avg(v)"}), frame).collect()[0]
    assert row.mean == Decimal("411522627.6744855963374485596667")


@given(st.data())
def test_one_quotient_equals_those_of_columns(data: st.DataObject) -> None:
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
