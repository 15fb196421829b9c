"""Redistribution of rows without a key over another number of key groups."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.declarations.state import ListState, MapState
from epochal.engine.rekey import redistributed
from epochal.snapshots.merging import base_schema
from epochal.state.table import StateTable

ELEMENTS = st.sets(st.tuples(st.integers(0, 7), st.integers(0, 50)), max_size=60)


def table_of(state: ListState | MapState) -> StateTable:
    state.name = "state"
    return state.table("operator", ())


@given(ELEMENTS, st.integers(1, 40), st.sampled_from(["operator", "union"]))
@pytest.mark.claim("Thesis, 4.2.2")
def test_elements_keep_their_order_and_have_distinct_addresses(
    elements: set[tuple[int, int]], after: int, scope: str
) -> None:
    table = table_of(ListState("at bigint", scope=scope))
    in_order = sorted(elements, key=lambda element: (element[1], element[0]))
    columns = [[group for group, _ in in_order], [group for group, _ in in_order], [index for _, index in in_order]]
    rows = pa.table([*columns, list(range(len(in_order)))], names=base_schema(table).names).cast(base_schema(table))
    moved, groups = redistributed(table, rows, 8, after)
    assert moved["_group"].to_pylist() == groups.tolist()
    assert all(0 <= group < after for group in groups.tolist())
    places = list(zip(moved["_index"].to_pylist(), moved["_group"].to_pylist(), strict=True))
    assert places == sorted(set(places)), "addresses are distinct and in order"
    assert moved["at"].to_pylist() == rows["at"].to_pylist()


def test_broadcast_state_keeps_its_addresses() -> None:
    table = table_of(MapState(key="name string", value="at bigint", scope="broadcast"))
    rows = pa.table([[0], [0], ["a"], [1]], names=base_schema(table).names).cast(base_schema(table))
    moved, groups = redistributed(table, rows, 8, 16)
    assert moved.equals(rows) and groups.tolist() == [0]
