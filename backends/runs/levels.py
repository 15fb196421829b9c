"""Which runs are to become one: a pure function of their sizes.

A row is merged about once for each power of ``FAN_IN`` by which the state is larger than what an epoch adds; the oldest
run, which holds nearly everything, only when what came after it is as large.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

FAN_IN: Final = 4
"""So many runs of about one size become one."""
MOST: Final = 24
"""Runs: with more of them nobody waits for the background."""


def due(rows: Sequence[int]) -> range | None:
    """The positions of the runs to be merged, of those that have so many rows, newest first; ``None``: none are."""
    count = len(rows)
    if count > FAN_IN and sum(rows[:-1]) >= rows[-1]:
        return range(count)
    for first in range(count - FAN_IN + 1):
        together = list(accumulate(rows[first:]))
        stop = 1
        while first + stop < count and rows[first + stop] <= together[stop - 1]:
            stop += 1
        if stop >= FAN_IN:
            return range(first, first + stop)
    return None
