"""Samples of tests: the same for the same seed, and never longer than the time that there is."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sampling import END, pytest_runtest_setup, sample

LENGTHS = st.lists(st.integers(1, 100), max_size=30)


@given(LENGTHS, st.integers(0, 300), st.integers())
def test_a_sample_fits_and_nothing_more_would(lengths: list[int], seconds: int, seed: int) -> None:
    items = range(len(lengths))
    chosen = sample(items, seed, seconds, lengths.__getitem__)
    left = seconds - sum(lengths[item] for item in chosen)
    assert left >= 0
    assert all(lengths[item] > left for item in set(items) - set(chosen))
    assert len(set(chosen)) == len(chosen)
    assert sample(items, seed, seconds, lengths.__getitem__) == chosen


def test_another_seed_chooses_others() -> None:
    assert len({tuple(sample(range(40), seed, 10, lambda _: 1)) for seed in range(5)}) == 5


def test_what_would_not_end_in_time_does_not_begin(request: pytest.FixtureRequest) -> None:
    stash = request.config.stash
    before = stash.get(END, math.inf)
    try:
        stash[END] = time.time() + 60
        pytest_runtest_setup(request.node)
        stash[END] = time.time()
        with pytest.raises(pytest.skip.Exception, match="this sample's time is over"):
            pytest_runtest_setup(request.node)
    finally:
        stash[END] = before
