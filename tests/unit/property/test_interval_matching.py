"""Rows of two streams are matched as by nested loops; digests of rows are equal exactly if the rows are."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from epochal.operators.joins.interval_matching import Runs, TimesByCode
from epochal.tasks.row_digests import WIDTH, row_digests

FAR = 2**63 - 2
TIMES = st.one_of(st.integers(-20, 20), st.sampled_from([-FAR, FAR, 2**62, -(2**62)]))
ROWS = st.lists(st.tuples(st.integers(0, 3), TIMES), max_size=12)
BOUNDS = st.tuples(st.integers(-8, 8), st.integers(-8, 8)).map(sorted)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    codes, times = np.array(rows, np.int64).reshape(-1, 2).T
    return codes, times


@given(ROWS, ROWS, BOUNDS, st.integers(1, 5))
@example([(0, -FAR), (1, FAR)], [(0, -FAR), (1, FAR), (1, FAR)], [-8, 8], 1)
def test_matched_runs_equal_the_pairs_of_nested_loops(
    some: list[tuple[int, int]], others: list[tuple[int, int]], bounds: list[int], size: int
) -> None:
    low, high = bounds
    sorted_rows = TimesByCode(*columns(some), code_count=4)
    runs = sorted_rows.near(*columns(others), low, high)
    found = []
    for other, position in runs.pairs(size):
        assert 0 < len(other) <= size
        found += zip(sorted_rows.order[position].tolist(), other.tolist(), strict=True)
    expected = [
        (i, j)
        for i, (code, time) in enumerate(some)
        for j, (other_code, other_time) in enumerate(others)
        if code == other_code and low <= time - other_time <= high
    ]
    assert sorted(found) == expected
    covered = np.zeros(len(some), bool)
    covered[sorted_rows.order[runs.covered(len(some))]] = True
    assert covered.tolist() == [i in {one for one, _ in expected} for i in range(len(some))]


@given(ROWS)
def test_extremes_are_the_least_and_greatest_time_of_each_code(rows: list[tuple[int, int]]) -> None:
    codes, times = columns(rows)
    found, least, greatest = TimesByCode(codes, times, 4).extremes(4, codes, times)
    by_code = {code: [time for other, time in rows if other == code] for code, _ in sorted(rows)}
    assert dict(zip(found.tolist(), zip(least.tolist(), greatest.tolist(), strict=True), strict=True)) == {
        code: (min(all), max(all)) for code, all in by_code.items()
    }


def test_long_runs_are_split() -> None:
    runs = Runs(np.array([7, 3]), np.array([0, 10]))
    parts = list(runs.pairs(4))
    assert [len(run) for run, _ in parts] == [4, 4, 2]
    assert np.concatenate([position for _, position in parts]).tolist() == list(range(3, 13))
    assert list(Runs(np.zeros(0, np.int64), np.zeros(0, np.int64)).pairs(4)) == []


SCHEMA = pa.schema(
    [("text", pa.string()), ("number", pa.int32()), ("real", pa.float64()), ("many", pa.list_(pa.int64()))]
)
VALUES = st.tuples(
    st.one_of(st.none(), st.text("ab\0", max_size=20)),
    st.one_of(st.none(), st.integers(-2, 2)),
    st.one_of(st.none(), st.sampled_from([0.0, 1.5, math.inf])),
    st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 1)), max_size=4)),
)


@given(st.lists(VALUES, max_size=20))
def test_digests_are_equal_exactly_for_equal_rows(rows: list[tuple[object, ...]]) -> None:
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
    digests = row_digests(table, SCHEMA).to_pylist()
    assert all(len(digest) == WIDTH for digest in digests)
    for one, first in zip(rows, digests, strict=True):
        for other, second in zip(rows, digests, strict=True):
            assert (first == second) == (one == other)


def test_digests_are_stable_across_versions() -> None:
    """State stores digests: a different digest would make two rows of one."""
    row = pa.Table.from_pylist([{"text": "Müller", "number": 7, "real": None, "many": [1, None]}], SCHEMA)
    assert row_digests(row, SCHEMA)[0].as_py().hex() == "f00baf6d3b665481c67eb1b6504047a2"
    assert row_digests(pa.table({"a": [1, 1]}), pa.schema([]))[0].as_py().hex() == "36afad3b3e03e0e992acc4d1955dad8a"


def test_halves_of_digests_are_unique_over_many_rows() -> None:
    rows = pa.table({"one": np.arange(200_000) % 500, "two": np.arange(200_000) // 500})
    digests = np.frombuffer(b"".join(row_digests(rows, rows.schema).to_pylist()), "<u8").reshape(-1, 2)
    assert len(np.unique(digests[:, 0])) == len(np.unique(digests[:, 1])) == rows.num_rows
