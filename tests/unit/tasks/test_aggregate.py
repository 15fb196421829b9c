"""T2 of ``aggregate``: the merge of a slice's partials into state."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.aggregates.built_in import BUILT_IN
from epochal.aggregates.mergeable import MergeableAggregate
from epochal.aggregates.plan import AggregationPlan, Part
from epochal.engine.failures import failure_of
from epochal.errors import EpochAborted
from epochal.operators.aggregate.work import AggregateWork
from epochal.state.table import Column, StateKind, StateTable

KEY = (Column(name="route", type="string"),)
VALUE = {"flights": "bigint", "total": "bigint", "worst": "int"}
TABLE = StateTable(
    id="operator",
    operator="operator",
    kind=StateKind.AGGREGATE,
    key=KEY,
    value=tuple(Column(name=name, type=type) for name, type in VALUE.items()),
)
ROW = pa.schema([("route", pa.string()), ("flights", pa.int64()), ("total", pa.int64()), ("worst", pa.int32())])


def part(name: str, aggregate: MergeableAggregate) -> Part:
    return Part(column=name, aggregate=aggregate, partials=aggregate.partials(), state_columns=(name,))


def plan(**aggregates: MergeableAggregate) -> AggregationPlan:
    parts = tuple(part(name, aggregate) for name, aggregate in aggregates.items())
    return AggregationPlan(operator="operator", table=TABLE, parts=parts, columns=())


PLAN = plan(flights=BUILT_IN["count"]("*"), total=BUILT_IN["sum"]("delay"), worst=BUILT_IN["max"]("delay"))


@pytest.fixture
def delays(make_operator: Any) -> Any:
    return make_operator(AggregateWork(PLAN), KEY, ROW, ROW, tables=(TABLE,))


def partial(route: str | None, flights: int, total: int | None, worst: int | None) -> dict[str, Any]:
    return {"route": route, "flights": flights, "total": total, "worst": worst}


def test_output_has_the_merged_partials_of_the_keys_in_the_slice(delays: Any) -> None:
    delays.run([partial("JFK", 2, 30, 20), partial("LAX", 1, None, None)])
    output = delays.run([partial("LAX", 2, 5, 5)])
    assert output == [partial("LAX", 3, 5, 5)]
    assert delays.state(TABLE) == {("JFK",): (2, 30, 20), ("LAX",): (3, 5, 5)}


def test_mark_rows_may_follow_data_rows(delays: Any) -> None:
    rows = delays.table([partial(route, 1, 1, 1) for route in "abcdefgh"])
    backwards = rows.take(pa.array(range(rows.num_rows - 1, -1, -1)))
    batches = backwards.to_batches(max_chunksize=3)
    given = pa.Table.from_batches(delays.task()(iter(batches)))
    assert sorted(filter(None, given["route"].to_pylist())) == list("abcdefgh")
    assert given["_subtask"].drop_null().to_pylist() == [0, 1, 2, 3]


def test_an_epoch_without_rows_changes_nothing(delays: Any) -> None:
    assert delays.run([]) == []
    assert delays.state(TABLE) == {}


def test_null_is_a_separate_key(delays: Any) -> None:
    delays.run([partial(None, 1, 1, 1), partial("", 1, 5, 5)])
    assert delays.run([partial(None, 2, 7, 3)]) == [partial(None, 3, 8, 3)]
    assert delays.state(TABLE) == {(None,): (3, 8, 3), ("",): (1, 5, 5)}


def test_an_overflow_of_a_sum_names_operator_and_column(delays: Any) -> None:
    delays.run([partial("JFK", 1, (1 << 63) - 1, 1)])
    with pytest.raises(EpochAborted) as raised:
        delays.attempt([partial("JFK", 1, 1, 1)])
    found = failure_of(raised.value)
    assert "Operator 'operator', column 'total'" in found.message
    assert found.step == "T2"


class Broken(MergeableAggregate):
    def partials(self) -> Any:
        return BUILT_IN["sum"]("delay").partials()

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        raise LookupError("the author's own merge")

    def final(self, partials: Any) -> Any:
        return partials[0]


def test_an_exception_of_an_authors_merge_is_an_author_error(make_operator: Any) -> None:
    broken = replace(PLAN, parts=(*PLAN.parts[:2], part("worst", Broken())))
    delays = make_operator(AggregateWork(broken), KEY, ROW, ROW, tables=(TABLE,))
    delays.run([partial("JFK", 1, 1, 1)])
    with pytest.raises(EpochAborted) as raised:
        delays.attempt([partial("JFK", 1, 1, 1)])
    found = failure_of(raised.value)
    assert found.type == "author-error"
    assert "LookupError: the author's own merge" in found.message
    assert found.traceback is not None and "in merge" in found.traceback


SLICE = st.dictionaries(st.sampled_from("abcdefghijk"), st.lists(st.integers(-100, 100), min_size=1), max_size=8)


@pytest.mark.parametrize("kind", ["heap", "lmdb"])
@settings(max_examples=settings.default.max_examples // 5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(slices=st.lists(SLICE, min_size=1, max_size=5))
def test_state_equals_the_aggregate_over_all_rows(make_operator: Any, kind: str, slices: Any) -> None:
    delays = make_operator(AggregateWork(PLAN), KEY, ROW, ROW, tables=(TABLE,), kind=kind)
    everything: dict[str, list[int]] = defaultdict(list)
    for slice in slices:
        delays.attempt([partial(key, len(values), sum(values), max(values)) for key, values in slice.items()])
        delays.run([partial(key, len(values), sum(values), max(values)) for key, values in slice.items()])
        for key, values in slice.items():
            everything[key] += values
        assert delays.state(TABLE) == {
            (key,): (len(values), sum(values), max(values)) for key, values in everything.items()
        }
