"""Merges recorded in a manifest equal the merges of the built-in aggregates."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
import pytest

from epochal.aggregates.built_in import BUILT_IN
from epochal.aggregates.kept_merges import _aggregate, merged, merges_of
from epochal.aggregates.mergeable import MergeableAggregate
from epochal.aggregates.plan import Part
from epochal.declarations.expressions import Expression
from epochal.state.table import ANY, SUM_OR_NULL, MergedColumns
from tests.unit.tasks.window_events import PARTIALS, PLAN

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("max_by", "min_by", "covar_samp", "covar_pop", "corr"), ("a", "b")),
    **dict.fromkeys(("percentile_approx", "approx_percentile"), ("a", 0.5)),
}


def part_of(aggregate: MergeableAggregate) -> Part:
    partials = aggregate.partials()
    return Part("c", aggregate, partials, tuple(f"c_{kept.name}" for kept in partials))


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_aggregate_round_trips_through_a_manifest(name: str) -> None:
    order = {"order_by": "b"} if name in ("first", "first_value", "last", "last_value") else {}
    aggregate = BUILT_IN[name](*ARGUMENTS.get(name, ("a",)), **order)
    if "type" in {field.name for field in fields(aggregate)}:  # type: ignore[arg-type]
        aggregate = replace(aggregate, type="decimal(12,2)")  # type: ignore[type-var]
    (recorded,) = merges_of([part_of(aggregate)]) or ()
    restored = _aggregate(MergedColumns.model_validate_json(recorded.model_dump_json()))
    assert type(restored) is type(aggregate)
    for field in fields(aggregate):  # type: ignore[arg-type]
        before, after = getattr(aggregate, field.name), getattr(restored, field.name)
        assert isinstance(before, Expression) or before == after or list(before) == after, field.name


def test_columns_are_merged_by_the_recorded_functions() -> None:
    schema = pa.schema([column.to_arrow() for column in PARTIALS])
    one = pa.table([[1, None], [5, None], [7, None]], schema=schema)
    other = pa.table([[2, 1], [-5, 4], [9, 4]], schema=schema)
    found = merged(merges_of(PLAN.parts) or (), one, other)
    assert found.schema == schema
    assert list(zip(*found.to_pydict().values(), strict=True)) == [(3, 0, 9), (1, 4, 4)]


class Own(MergeableAggregate):
    def partials(self) -> Any:
        return ()

    def merge(self, old: Any, new: Any) -> Any:
        return new

    def final(self, partials: Any) -> Any:
        return None


def test_custom_aggregates_have_no_recorded_merge() -> None:
    assert merges_of([*PLAN.parts, part_of(Own())]) is None


def test_a_sum_of_instances_is_null_after_an_overflow() -> None:
    sums = (MergedColumns(function=SUM_OR_NULL, columns={"value": "n"}),)
    least, most = -(2**63), 2**63 - 1
    one = pa.table({"n": pa.array([1, most, most, least, least, None, 7], pa.int64())})
    other = pa.table({"n": pa.array([2, 0, 1, -1, most, 1, None], pa.int64())})
    assert merged(sums, one, other)["n"].to_pylist() == [3, most, None, None, -1, None, None]
    assert merged(sums, one.slice(0, 0), other.slice(0, 0)).num_rows == 0
    floats = [pa.table({"n": pa.array(values, pa.float64())}) for values in ([0.5, 1e308], [0.25, 1e308])]
    assert merged(sums, *floats)["n"].to_pylist() == [0.75, float("inf")]


def test_any_of_several_equal_instances_is_the_result() -> None:
    any_instance = (MergedColumns(function=ANY, columns={"value": "names"}),)
    one = pa.table({"names": [["a"], None]})
    assert merged(any_instance, one, one) == one
