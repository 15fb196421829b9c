"""Which runs of state are merged: few stay, and rows are seldom written again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochal.backends.runs.lists import FAN_IN, due


@given(st.lists(st.one_of(st.integers(1, 5), st.integers(1, 10_000)), max_size=200))
def test_runs_stay_few_and_rows_are_seldom_merged(epochs: list[int]) -> None:
    runs: list[int] = []
    merged = 0
    for rows in epochs:
        runs = [rows, *runs]
        while (chosen := due(runs)) is not None:
            assert len(chosen) >= FAN_IN
            together = sum(runs[chosen.start : chosen.stop])
            merged += together
            runs = [*runs[: chosen.start], together, *runs[chosen.stop :]]
    assert sum(runs) == sum(epochs)
    most = 1 + max(1, sum(epochs)).bit_length()
    assert len(runs) <= FAN_IN * most
    assert merged <= sum(epochs) * most
