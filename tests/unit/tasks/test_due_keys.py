"""The keys that a subtask calls, with their rows and timers, for any chunks of rows and timers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import EpochAborted
from epochal.operators.process.due_keys import TIMER_SCHEMA, DueKeys, due_keys
from epochal.operators.process.timers import EVENT, PROCESSING
from epochal.state.keygroups import key_groups
from epochal.state.table import Column
from epochal.tasks.keys import Chunk, KeyChunk, whole_keys

KEY = (Column(name="plane", type="string"), Column(name="n", type="int"))
KEY_SCHEMA = pa.schema([column.to_arrow() for column in KEY])
MAX_PARALLELISM = 4

Key = tuple[str | None, int | None]
NUMBERS = st.none() | st.integers(0, 3)
KEYS = st.tuples(st.none() | st.sampled_from(["a", "b", "c", "\x00", "\ud7ff", "\U0001f600"]), NUMBERS)
TIMERS = st.tuples(KEYS, st.sampled_from([EVENT, PROCESSING]), st.integers(0, 4), st.sampled_from(["", "x", "y"]))


@given(st.lists(KEYS, max_size=30), st.sets(TIMERS, max_size=40), st.integers(1, 8), st.integers(1, 8))
def test_each_key_occurs_once_with_all_rows_and_sorted_timers(
    rows: list[Key], timers: set[tuple[Key, int, int, str]], target: int, cut: int
) -> None:
    found: dict[Key, tuple[int, list[Any]]] = {}
    for piece in called(rows, sorted(timers, key=repr), target, cut):
        assert piece.rows is None or piece.rows.num_rows == piece.ends[-1]
        of_timer, first, start = piece.timer_list(), 0, 0
        keys = keys_of(piece.keys.table)
        for key, group, end, last in zip(keys, piece.keys.groups, piece.ends, piece.bounds, strict=True):
            assert key not in found
            assert piece.rows is None or keys_of(piece.rows.slice(start, end - start)) == [key] * (end - start)
            assert group == groups_of([key])[0]
            found[key] = (end - start, of_timer[first:last])
            first, start = last, end
        assert first == len(of_timer)
    expected = {
        key: (rows.count(key), sorted(timer[1:] for timer in timers if timer[0] == key))
        for key in {*rows, *(timer[0] for timer in timers)}
    }
    assert found == expected


def test_timers_of_many_keys_are_split_into_chunks() -> None:
    timers = [(("k", number), EVENT, number, "") for number in range(1000)]
    sizes = [len(piece.timer_list()) for piece in called([("k", 5)], timers, 50, 50)]
    assert sum(sizes) == 1000
    assert max(sizes) <= 100
    assert [len(called_once) for called_once in [list(called([], timers, 10_000, 50))]] == [1]


def test_rows_not_sorted_by_key_group_are_a_defect() -> None:
    keys: list[Key] = [("a", number) for number in range(20)]
    table = rows_table(keys).sort_by("n")
    with pytest.raises(EpochAborted, match="not sorted by key group"):
        list(due_keys(whole_keys(iter(table.to_batches()), ("plane", "n"), 4), chunk_keys, KEY, []))


def called(rows: list[Key], timers: list[tuple[Key, int, int, str]], target: int, cut: int) -> Iterator[DueKeys]:
    table = rows_table(rows)
    order = [("_kg", "ascending"), ("plane", "ascending"), ("n", "ascending")]
    batches = iter(table.sort_by(order).to_batches(max_chunksize=cut))
    chunks = whole_keys(batches, ("plane", "n"), cut) if rows else iter(())
    by_domain = [timer_tables([timer for timer in timers if timer[1] == domain], cut) for domain in (EVENT, PROCESSING)]
    return due_keys(chunks, chunk_keys, KEY, by_domain, target)


def timer_tables(timers: list[tuple[Key, int, int, str]], cut: int) -> list[pa.Table]:
    """Timers in the order of a state table: by key group, then time."""
    groups = groups_of([key for key, *_ in timers])
    keys = [pa.array([timer[0][column] for timer in timers], type) for column, type in enumerate(KEY_SCHEMA.types)]
    columns = [pa.array([timer[place] for timer in timers], TIMER_SCHEMA.types[place - 1]) for place in (1, 2, 3)]
    due = pa.array([timer[2] for timer in timers], pa.int64())
    names = [*KEY_SCHEMA.names, "_kg", *TIMER_SCHEMA.names]
    table = pa.table([*keys, pa.array(groups), *columns, due], names)
    table = table.take(pa.array(random.Random(len(timers)).sample(range(len(timers)), len(timers)), pa.int64()))
    table = table.sort_by([("_kg", "ascending"), ("_at", "ascending")])
    return [table.slice(first, cut) for first in range(0, table.num_rows, cut)]


def rows_table(rows: list[Key]) -> pa.Table:
    columns = [pa.array([row[column] for row in rows], type) for column, type in enumerate(KEY_SCHEMA.types)]
    return pa.table([*columns, pa.array(groups_of(rows))], [*KEY_SCHEMA.names, "_kg"])


def groups_of(keys: list[Key]) -> Any:
    columns = [pa.array([key[column] for key in keys], type) for column, type in enumerate(KEY_SCHEMA.types)]
    return key_groups(pa.table(columns, schema=KEY_SCHEMA), KEY_SCHEMA, MAX_PARALLELISM).astype(np.int32)


def chunk_keys(chunk: Chunk) -> KeyChunk:
    first = chunk.rows.take(pa.array(chunk.starts))
    return KeyChunk(KEY, first.select(KEY_SCHEMA.names), first["_kg"].combine_chunks().to_numpy())


def keys_of(table: pa.Table) -> list[Key]:
    return [tuple(row) for row in zip(*(table[name].to_pylist() for name in KEY_SCHEMA.names), strict=True)]
