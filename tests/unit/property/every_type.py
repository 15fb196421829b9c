"""Rows with columns of every type, and the comparison of a streamed aggregation with Spark's batch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.aggregates.plan import AggregationPlan
from epochal.connectors import generator
from epochal.operators.aggregate.plan import AggregateOperator
from tests.unit.property.every_cut import CUT, SHOWN, SLICE, SLICES, batch, streamed

SHARE = 1 if settings().max_examples > 25 else 3
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
    """Values whose sum and average still fit a type: three or four digits before the point remain."""
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
    "span": ("interval day to second", lambda choose: timedelta(microseconds=choose.randrange(-(10**13), 10**13))),
}
NUMBERS = [name for name, (type, _) in TYPES.items() if type.startswith(("tiny", "small", "int", "big", "float", "d"))]
NUMBERS.remove("day")
NUMBERS.remove("span")


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
    operator = pipeline.graph().operators[0].operator
    assert isinstance(operator, AggregateOperator)
    return operator.aggregation(frame.limit(0))


def some(columns: Mapping[str, Any], choose: random.Random) -> dict[str, Any]:
    """A random third of the columns, or all in the thorough profile: Spark plans each of them many times."""
    return {name: columns[name] for name in choose.sample(sorted(columns), len(columns) // SHARE)}


def assert_equal_to_batch(
    frame: DataFrame, columns: Mapping[str, Any], sparks: Mapping[str, Any] | None = None
) -> None:
    """``sparks``: expressions for Spark in place of ``columns``, where it needs others."""
    plan = plan_of(frame, dict(columns))
    got, expected = streamed(plan, frame), batch(frame, {name: (sparks or columns)[name] for name in columns})
    types = {
        field.name: (field.dataType, field.nullable)
        for field in got.schema
        if field.name not in (CUT, "k") and not field.name.startswith(SHOWN)
    }
    spark_types = {field.name: (field.dataType, field.nullable) for field in expected.schema if field.name != "k"}
    assert types == spark_types, {
        name: (types[name], spark_types[name]) for name in types if types[name] != spark_types.get(name)
    }
    answers = {row["k"]: row.asDict() for row in expected.collect()}
    collected = got.collect()
    assert len(collected) == len(answers) * 2 ** (SLICES - 1)
    for row in collected:
        answer = answers[row["k"]]
        for name in columns:
            assert same(row[name], answer[name]), (row["k"], row[CUT], name, row[name], answer[name])
        for shown in plan.table.shown:
            looked_up, value = row[SHOWN + shown.name], row[shown.name]
            assert same(looked_up, value), (row["k"], row[CUT], shown.name, looked_up, value)


def same(left: Any, right: Any) -> bool:
    """Doubles within 1e-9; the absolute tolerance is for sums of numbers up to 1e9 that nearly cancel out."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-5) or (left != left and right != right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


few = settings(
    max_examples=max(settings().max_examples // 25, 1),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""Each example runs several Spark jobs over all types."""
