"""Sessions merged over arrays equal those of nested loops and of Spark's ``session_window``, in any parts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from epochal.operators.windows.sessions import Sessions, merged_sessions
from epochal.tasks.windows import timestamps

Interval = tuple[int, int, int]
"""Key, start, end."""

GAP = 5
ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(-30, 60)), max_size=30)


def sessions(intervals: list[Interval]) -> Sessions:
    columns = np.array(intervals, np.int64).reshape(-1, 3).T
    return Sessions(columns[0], columns[1], columns[2])


def intervals(found: Sessions) -> list[Interval]:
    return list(zip(found.keys.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True))


def by_loops(parts: list[Interval]) -> list[Interval]:
    """Merges touching sessions of a key until no two touch."""
    merged = sorted(set(parts))
    for one in merged:
        for other in merged:
            if one < other and one[0] == other[0] and one[1] <= other[2] and other[1] <= one[2]:
                rest = [part for part in merged if part not in (one, other)]
                return by_loops([*rest, (one[0], min(one[1], other[1]), max(one[2], other[2]))])
    return merged


@given(st.lists(ROWS, min_size=1, max_size=5), st.randoms())
def test_merging_epoch_by_epoch_equals_merging_all_rows(epochs: list[list[tuple[int, int]]], random: object) -> None:
    stored: list[Interval] = []
    everything: list[Interval] = []
    for rows in epochs:
        new = [(key, time, time + GAP) for key, time in rows]
        random.shuffle(stored)  # type: ignore[attr-defined]
        merged = merged_sessions(sessions(new), sessions(stored))
        changed = intervals(merged.changed)
        assert changed == sorted(changed)
        for (key, start, end), position in zip(new, merged.of_new.tolist(), strict=True):
            assert changed[position][0] == key and changed[position][1] <= start and end <= changed[position][2]
        for (key, start, end), position in zip(stored, merged.of_stored.tolist(), strict=True):
            if position >= 0:
                assert changed[position][0] == key and changed[position][1] <= start and end <= changed[position][2]
        assert set(range(len(changed))) == set(merged.of_new.tolist())
        kept = [one for one, position in zip(stored, merged.of_stored.tolist(), strict=True) if position < 0]
        stored, everything = [*kept, *changed], [*everything, *new]
        assert sorted(stored) == by_loops(everything)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9)), max_size=20))
def test_sessions_of_any_length_are_merged(parts: list[tuple[int, int, int]]) -> None:
    new = [(key, start, start + length) for key, start, length in parts]
    assert intervals(merged_sessions(sessions(new), sessions([])).changed) == by_loops(new)


def test_one_row_joins_two_stored_sessions_and_leaves_the_others() -> None:
    stored = [(0, 0, 10), (0, 14, 20), (0, 30, 35), (1, 0, 10)]
    merged = merged_sessions(sessions([(0, 9, 14)]), sessions(stored))
    assert intervals(merged.changed) == [(0, 0, 20)]
    assert merged.of_stored.tolist() == [0, 0, -1, -1]


def test_stored_sessions_are_merged_after_the_gap_grows() -> None:
    merged = merged_sessions(sessions([(1, 0, 5)]), sessions([(0, 0, 10), (0, 8, 20)]))
    assert intervals(merged.changed) == [(0, 0, 20), (1, 0, 5)]
    assert (merged.of_new.tolist(), merged.of_stored.tolist()) == ([1], [0, 0])


def test_sessions_equal_those_of_spark(spark: SparkSession) -> None:
    random = np.random.default_rng(13)
    second = 1_000_000
    keys, times = random.integers(0, 40, 600), random.integers(-2_000, 2_000, 600) * second
    times[1::2] = times[::2] + GAP * second  # exactly a gap apart, which must be one session
    keys[1::2] = keys[::2]
    mine = merged_sessions(Sessions(keys, times, times + GAP * second), sessions([])).changed
    assert any(later - earlier == GAP * second for earlier, later in pairwise(sorted(times.tolist())))
    frame = spark.createDataFrame(pa.table({"key": keys, "ts": timestamps(times)}))
    theirs = frame.groupBy("key", F.session_window("ts", f"{GAP} seconds").alias("s")).agg(F.count("*"))
    rows = theirs.selectExpr("key", "unix_micros(s.start)", "unix_micros(s.end)").collect()
    assert sorted(map(tuple, rows)) == intervals(mine)
