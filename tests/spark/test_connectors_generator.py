"""The generator: deterministic rows, a rate, a bound."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from epochal.connectors import generator
from epochal.connectors.generator import GeneratorSource
from epochal.contracts.source import Slice, SliceLimits
from epochal.errors import OptionError, SchemaError

UNLIMITED = SliceLimits(None)
COLUMNS = {"id": "id", "sensor": "noise % 10"}


def planned(source: GeneratorSource, limit: int | None = None) -> Slice:
    slice = source.plan(SliceLimits(limit))
    assert slice is not None
    return slice


def test_rows_are_the_same_for_every_cut_into_slices(spark: SparkSession) -> None:
    whole = GeneratorSource(COLUMNS, bound=100, seed=7)
    rows = whole.read(spark, planned(whole)).collect()
    assert len(rows) == 100
    assert all(0 <= row.sensor < 10 for row in rows)
    cut, parts = GeneratorSource(COLUMNS, bound=100, seed=7), []
    while (slice := cut.plan(SliceLimits(33))) is not None:
        parts += cut.read(spark, slice).collect()
        cut.accept(slice)
    assert sorted(parts) == sorted(rows)
    other = GeneratorSource(COLUMNS, bound=100, seed=8)
    assert sorted(other.read(spark, planned(other)).collect()) != sorted(rows)


def test_source_ends_at_its_bound_and_continues_at_its_position() -> None:
    source = GeneratorSource(COLUMNS, bound=25)
    assert not source.ended
    first = planned(source, 10)
    assert planned(source, 10) == first  # planned, not accepted
    source.accept(first)
    restored = GeneratorSource(COLUMNS, bound=25)
    restored.restore(source.checkpoint(), [planned(source, 10)])
    assert planned(restored).model_dump()["start"] == {"row": 20}
    restored.accept(planned(restored))
    assert restored.plan(UNLIMITED) is None
    assert restored.ended


def test_rows_become_due_at_the_rate() -> None:
    now = 100.0
    source = GeneratorSource(COLUMNS, rate=50, clock=lambda: now)
    assert source.plan(UNLIMITED) is None
    now += 2.0
    first = planned(source)
    assert first.rows == 100
    source.accept(first)
    assert source.plan(UNLIMITED) is None
    now += 0.5
    assert planned(source).rows == 25


def test_bounded_source_without_due_rows_has_not_ended() -> None:
    source = GeneratorSource(COLUMNS, rate=1, bound=3, clock=lambda: 5.0)
    assert source.plan(UNLIMITED) is None
    assert not source.ended


def test_all_rows_up_to_the_bound_are_available_at_any_rate() -> None:
    source = GeneratorSource(COLUMNS, rate=1, bound=25, clock=lambda: 5.0)
    source.limit_to_available()
    assert [planned(source, 10).rows, planned(source).rows] == [10, 25]
    source.accept(planned(source))
    assert source.ended


def test_bounded_rows_keep_their_rate() -> None:
    source = GeneratorSource(COLUMNS, rate=1, bound=3, clock=lambda: 5.0)
    source.limit_to_bounds()
    assert source.bounded and source.plan(UNLIMITED) is None
    endless = GeneratorSource(COLUMNS, rate=1)
    endless.limit_to_bounds()
    assert not endless.bounded


def test_unbounded_rows_cannot_be_limited_to_available_ones() -> None:
    with pytest.raises(OptionError, match=r"Give generator\.source a bound"):
        GeneratorSource(COLUMNS, rate=1).limit_to_available()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"columns": {}}, "needs columns"),
        ({"columns": COLUMNS, "rate": 0}, "rate is 0"),
        ({"columns": COLUMNS, "bound": 1.5}, "bound is 1.5; it must be an integer"),
        ({"columns": COLUMNS, "bond": 3}, "Did you mean 'bound'?"),
        ({"columns": {"a": "rand(3)"}}, "uses rand"),
        ({"columns": {"a": "current_timestamp"}}, "uses current_timestamp"),
    ],
)
def test_options_are_checked(arguments: dict[str, object], part: str) -> None:
    with pytest.raises(OptionError) as caught:
        generator.source(**arguments)  # type: ignore[arg-type]
    assert part in caught.value.message


def test_expressions_are_checked_with_spark(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match="Use expressions over id and noise"):
        GeneratorSource({"a": "iid + 1"}).schema(spark)
