"""Merges of partial values: slices merged one by one equal a naive oracle over all values."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.aggregates.mergeable import Extreme
from epochal.aggregates.merging import Merge, merge_columns
from epochal.declarations.expressions import column
from epochal.state.types import arrow_type

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), st.integers(-(2**40), 2**40)),
    "int": (pa.int32(), st.integers(-(2**20), 2**20)),
    "double": (pa.float64(), st.integers(-1000, 1000).map(float) | st.just(math.nan)),
    "decimal": (pa.decimal128(20, 2), st.decimals(-(10**9), 10**9, places=2)),
    "widest": (pa.decimal128(38, 2), st.decimals(-(10**20), 10**20, places=2)),
    "string": (pa.string(), st.text(max_size=4)),
    "boolean": (pa.bool_(), st.booleans()),
    "timestamp": (pa.timestamp("us", tz="UTC"), st.integers(0, 10**15)),
}


def order(value: Any) -> Any:
    """Spark's order: NaN is above every number, text by its bytes."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def smallest(values: list[Any]) -> Any:
    return min(values, key=order)


def largest(values: list[Any]) -> Any:
    return max(values, key=order)


def total(values: list[Any]) -> Any:
    return sum(values, start=type(values[0])(0))


def combined(operation: Callable[[int, int], int]) -> Callable[[list[int]], int]:
    def over(values: list[int]) -> int:
        result = values[0]
        for value in values[1:]:
            result = operation(result, value)
        return result

    return over


CASES: list[tuple[Merge, str, Callable[[list[Any]], Any]]] = [
    *((Merge.SUM, name, total) for name in ("bigint", "int", "double", "decimal", "widest")),
    *((Merge.MIN, name, smallest) for name in TYPES),
    *((Merge.MAX, name, largest) for name in TYPES),
    (Merge.AND, "boolean", all),
    (Merge.OR, "boolean", any),
    (Merge.BIT_AND, "bigint", combined(lambda a, b: a & b)),
    (Merge.BIT_OR, "bigint", combined(lambda a, b: a | b)),
    (Merge.BIT_XOR, "bigint", combined(lambda a, b: a ^ b)),
]


def plain(array: Any) -> list[Any]:
    """Python values, with timestamps as integers, so that the oracle needs no calendar."""
    return (array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_pylist()


def same(left: Any, right: Any) -> bool:
    return left == right or (isinstance(left, float) and isinstance(right, float) and left != left and right != right)


@pytest.mark.parametrize(("kind", "name", "oracle"), CASES, ids=lambda case: str(getattr(case, "value", case))[:12])
@given(data=st.data())
def test_merged_slices_equal_the_whole(
    kind: Merge, name: str, oracle: Callable[[list[Any]], Any], data: st.DataObject
) -> None:
    type, values = TYPES[name]
    keys = data.draw(st.integers(1, 5))
    slices = data.draw(st.lists(st.lists(st.none() | values, min_size=keys, max_size=keys), min_size=1, max_size=4))
    state = pa.nulls(keys, type)
    for slice in slices:
        state = merge_columns(kind, state, pa.array(slice, type))
    for key, got in enumerate(plain(state)):
        seen = [slice[key] for slice in slices if slice[key] is not None]
        expected = oracle(seen) if seen else None
        assert same(got, expected)
    assert state.type == type


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-2, 2).map(float) | st.just(math.nan), st.none() | st.sampled_from(["", "a", "é"])
        ),
        min_size=1,
    ),
    st.booleans(),
)
def test_the_value_breaks_ties_of_the_order(rows: list[tuple[float | None, str | None]], highest: bool) -> None:
    aggregate = Extreme(column("value"), column("order"), largest=highest)
    schema = pa.schema([("value", pa.string()), ("order", pa.float64())])
    state = pa.table([pa.nulls(1, pa.string()), pa.nulls(1, pa.float64())], schema=schema)
    for rank, text in rows:
        # As Spark's max_by over a slice: null if no row has an order.
        slice = pa.table([[None if rank is None else text], [rank]], schema=schema)
        state = aggregate.merge(state, slice)
    places = [(order(rank), text is not None, order(text or ""), text) for rank, text in rows if rank is not None]
    expected = (max if highest else min)(places)[-1] if places else None
    assert state["value"].to_pylist() == [expected]


@given(
    st.lists(
        st.none()
        | st.tuples(
            st.none() | st.integers(-1, 1),
            st.none() | st.tuples(st.none() | st.sampled_from([0.5, math.nan]), st.none() | st.sampled_from("ab")),
        ),
        min_size=1,
    ),
    st.booleans(),
)
def test_a_struct_breaks_ties_field_by_field(values: list[Any], highest: bool) -> None:
    type = "struct<number:int,inner:struct<share:double,text:string>>"
    types = {"value": type, "order": "int"}
    aggregate = Extreme(column("value"), column("order"), largest=highest).resolved(lambda e: types[str(e).strip("`")])
    schema = pa.schema([("value", arrow_type(type)), ("order", pa.int32()), ("tie", pa.int64())])
    state = pa.Table.from_pylist([dict.fromkeys(schema.names)], schema=schema)
    for tie, value in enumerate(values):
        number, inner = value or (None, None)
        nested = None if inner is None else dict(zip(("share", "text"), inner, strict=True))
        row = {"value": None if value is None else {"number": number, "inner": nested}, "order": 7, "tie": -tie}
        state = aggregate.merge(state, pa.Table.from_pylist([row], schema=schema))

    got = state["value"].to_pylist()[0]
    found = got and (got["number"], got["inner"] and (got["inner"]["share"], got["inner"]["text"]))
    assert place(found) == (max if highest else min)(map(place, values))


def place(value: Any) -> Any:
    """Sort key of a struct: null first, then field by field."""
    return (value is not None, tuple(map(place, value)) if isinstance(value, tuple) else value and order(value))


@pytest.mark.parametrize(
    ("type", "old", "new"),
    [
        (pa.int64(), 2**63 - 1, 1),
        (pa.int64(), -(2**63), -1),
        (pa.decimal128(20, 2), Decimal("999999999999999999.99"), Decimal("0.01")),
        (pa.decimal128(38, 0), Decimal(10**38 - 1), Decimal(1)),
    ],
)
def test_a_sum_that_overflows_its_type_is_an_error(type: pa.DataType, old: Any, new: Any) -> None:
    with pytest.raises(OverflowError, match="does not fit"):
        merge_columns(Merge.SUM, pa.array([old, None], type), pa.array([new, None], type))
    assert merge_columns(Merge.SUM, pa.array([old], type), pa.array([None], type)).to_pylist() == [old]
