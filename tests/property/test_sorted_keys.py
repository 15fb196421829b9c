"""Sorted keys are those of the dictionary, in order, whatever has become of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochal.backends.sorted_keys import SortedKeys

KEYS = st.integers(0, 60).map(lambda number: b"%02d" % number)
CHANGES = st.dictionaries(KEYS, st.sampled_from([b"", None]), max_size=15)
BOUNDS = st.none() | KEYS


@given(st.sets(KEYS), st.lists(CHANGES, max_size=8), st.lists(st.tuples(BOUNDS, BOUNDS)), st.none() | st.integers(0, 9))
def test_they_are_those_of_the_dictionary(
    first: set[bytes], changes: list[dict[bytes, bytes | None]], ranges: list[tuple[bytes, bytes]], limit: int | None
) -> None:
    values: dict[bytes, bytes | None] = dict.fromkeys(first, b"")
    keys = SortedKeys(first)
    before, kept = keys.copy(), sorted(values)
    for change in changes:
        keys.change(values, change.keys(), change.values())
        values = {key: value for key, value in (values | change).items() if value is not None}
        counts, found = keys.between([low for low, _ in ranges], [high for _, high in ranges], limit)
        expected = [
            sorted(key for key in values if (low is None or key >= low) and (high is None or key < high))[:limit]
            for low, high in ranges
        ]
        assert counts == [len(of_range) for of_range in expected]
        assert found == [key for of_range in expected for key in of_range]
    assert keys.between([None], [None], None)[1] == sorted(values)
    assert before.between([None], [None], None)[1] == kept
