"""Runs of rows are reduced like a loop over each run, in the order of its rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from epochal.tasks.row_runs import Runs, reduced


def joined(one: pa.Table, other: pa.Table) -> pa.Table:
    """Associative, but not commutative."""
    assert one.num_rows == other.num_rows
    return pa.table({"text": pc.binary_join_element_wise(one["text"], other["text"], "")})


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 40))
    bounds = st.tuples(st.integers(0, count - 1), st.integers(1, count)).map(sorted).filter(lambda b: b[0] < b[1])
    return count, [(first, end) for first, end in draw(st.lists(bounds, max_size=30))]


@given(runs())
def test_a_run_equals_its_rows_merged_in_order(case: tuple[int, list[tuple[int, int]]]) -> None:
    count, bounds = case
    texts = [f"{number}," for number in range(count)]
    found = reduced(
        pa.table({"text": pa.array(texts)}),
        Runs(np.array([first for first, _ in bounds], np.int64), np.array([end for _, end in bounds], np.int64)),
        joined,
    )
    assert found["text"].to_pylist() == ["".join(texts[first:end]) for first, end in bounds]


def test_overlapping_windows_share_merges() -> None:
    """1,000 windows of 64 panes over 1,063 panes: the merges per pane are logarithmic in the length of a window."""
    merged = 0

    def counting(one: pa.Table, other: pa.Table) -> pa.Table:
        nonlocal merged
        merged += one.num_rows
        return pa.table({"sum": pc.add(one["sum"], other["sum"])})

    rows = pa.table({"sum": pa.array(np.ones(1_063, np.int64))})
    firsts = np.arange(1_000)
    assert reduced(rows, Runs(firsts, firsts + 64), counting)["sum"].to_pylist() == [64] * 1_000
    assert merged < 7 * rows.num_rows
    merged = 0
    assert reduced(rows, Runs(np.array([0]), np.array([1_000])), counting)["sum"].to_pylist() == [1_000]
    assert merged < 1_000
