"""Choice of the state runs to merge: few runs remain, and each row is rewritten few times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochal.backends.runs.lists import FAN_IN, due


@given(st.lists(st.one_of(st.integers(1, 5), st.integers(1, 10_000)), max_size=200))
def test_the_number_of_runs_and_of_rewritten_rows_is_logarithmic(epochs: list[int]) -> None:
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
