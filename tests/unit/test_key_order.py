"""Keys are ordered by key group, then by bytes, whatever their common prefix."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.key_order import WORD, common_width, last_of_each, order_by_group_and_key, places_among, taken

ONE_WIDTH = st.integers(1, 20).flatmap(lambda width: st.lists(st.binary(min_size=width, max_size=width), max_size=40))
ANY_WIDTH = st.lists(st.binary(max_size=20), max_size=40)
FEW_BYTES = st.lists(st.text("\0\1a", max_size=12).map(str.encode), max_size=40)
BEGINNINGS = st.sampled_from([b"", b"shop", b"a prefix that all keys share\0"])
KEYS = st.builds(
    lambda beginning, keys: [beginning + key for key in keys], BEGINNINGS, st.one_of(ONE_WIDTH, ANY_WIDTH, FEW_BYTES)
)
TYPES = st.sampled_from([pa.binary(), pa.large_binary()])


@given(KEYS, TYPES, st.sampled_from([1, 3, 32_768]), st.randoms())
def test_keys_are_ordered_by_group_and_bytes(keys: list[bytes], kind: pa.DataType, groups: int, random) -> None:  # type: ignore[no-untyped-def]
    key_groups = [random.randrange(groups) for _ in keys]
    order, repeated = order_by_group_and_key(np.array(key_groups, np.int32), pa.array(keys, kind))
    rows = list(zip(key_groups, keys, strict=True))
    assert sorted(order.tolist()) == list(range(len(keys)))
    assert [rows[row] for row in order] == sorted(rows)
    assert repeated == (len(set(rows)) < len(rows))


@given(KEYS, TYPES, st.sampled_from([1, 3]), st.randoms())
def test_the_last_row_of_each_key_is_found(keys: list[bytes], kind: pa.DataType, groups: int, random) -> None:  # type: ignore[no-untyped-def]
    rows = [(random.randrange(groups), random.choice(keys)) for _ in range(2 * len(keys))]
    row_groups = np.array([group for group, _ in rows], np.int32)
    last = last_of_each(row_groups, pa.array([key for _, key in rows], kind))
    where = {row: place for place, row in enumerate(rows)}
    assert last.tolist() == [where[row] for row in sorted(where)]


@given(KEYS.filter(bool), TYPES, st.sampled_from([1, 3]), st.randoms())
def test_positions_of_keys_among_other_keys_are_found(
    keys: list[bytes], kind: pa.DataType, groups: int, random
) -> None:  # type: ignore[no-untyped-def]
    def some() -> list[tuple[int, bytes]]:
        return sorted({(random.randrange(groups), random.choice(keys)) for _ in keys})

    rows, others = some(), some()
    both = [*rows, *others]
    array = pa.array([key for _, key in both], kind)
    found = places_among(np.array([group for group, _ in both], np.int32), array, len(rows))
    if found is None:  # only for keys longer than a word or of different lengths
        assert common_width(array) is None or common_width(array) > WORD
        return
    places, present = found
    assert places.tolist() == [bisect_left(rows, other) for other in others]
    assert present.tolist() == [other in rows for other in others]


@given(KEYS, TYPES, st.data())
def test_taken_rows_equal_those_of_pyarrow_take(keys: list[bytes], kind: pa.DataType, data: st.DataObject) -> None:
    array = pa.array([b"before", *keys], kind)[1:]
    rows = data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=30)) if keys else []
    width = common_width(array)
    assert width == (len(keys[0]) if keys and len(set(map(len, keys))) == 1 else None)
    assert taken(array, np.array(rows, np.int64), width).equals(array.take(pa.array(rows, pa.int64())))


@pytest.mark.parametrize("width", [8, 12])
def test_keys_that_differ_only_in_the_last_byte_are_ordered(width: int) -> None:
    keys = [bytes([0] * (width - 1) + [last]) for last in reversed(range(256))]
    order, repeated = order_by_group_and_key(np.zeros(256, np.int32), pa.array(keys))
    assert order.tolist() == list(reversed(range(256)))
    assert not repeated
