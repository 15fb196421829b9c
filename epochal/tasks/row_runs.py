"""Reduces runs of consecutive rows to one row each by a binary merge: the panes of windows, the parts of sessions.

The merge must be associative, and takes whole columns. Runs of 1, 2, 4, .. rows are merged once and reused in all
longer runs that contain them, so that the cost of overlapping windows grows with their rows, not with the sum of their
sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]
Merge = Callable[[pa.Table, pa.Table], pa.Table]
"""Row i of the result merges row i of both arguments, which have the same columns."""


@dataclass(frozen=True)
class Runs:
    """Run ``i`` has the rows from ``firsts[i]`` up to, not including, ``ends[i]``, at least one. Arrays of one
    length."""

    firsts: Integers
    ends: Integers


def reduced(rows: pa.Table, runs: Runs, merge: Merge) -> pa.Table:
    """One row for each run, in order: its rows, merged from first to last."""
    lengths = runs.ends - runs.firsts
    if not len(lengths) or lengths.max() == 1:
        return rows.take(pa.array(runs.firsts))
    result = rows.schema.empty_table()
    held = np.zeros(0, np.int64)  # the runs with a row in ``result``, ascending
    at = runs.firsts.copy()
    count, places = rows.num_rows, np.arange(rows.num_rows)
    for level, needed in enumerate(_needed(runs.firsts, lengths, count)):
        size, positions = 1 << level, np.flatnonzero(needed)
        # Row i of ``rows`` becomes the run of ``size`` rows from ``positions[i]``.
        if level == 0:
            rows = rows.take(pa.array(positions))
        else:
            first, second = (rows.take(pa.array(places[positions + step])) for step in (0, size // 2))
            rows = merge(first, second)
        places = np.cumsum(needed) - 1
        mine = np.flatnonzero(lengths & size)
        parts = rows.take(pa.array(places[at[mine]]))
        at[mine] += size
        result, held = _added(result, held, parts, mine, merge)
    return result


def _needed(firsts: Integers, lengths: Integers, rows: int) -> list[npt.NDArray[np.bool_]]:
    """By level, the first rows of the runs of ``2 ** level`` rows that are needed as parts."""
    levels = int(lengths.max()).bit_length()
    needed = [np.zeros(rows, np.bool_) for _ in range(levels)]
    for level in reversed(range(levels)):
        size = 1 << level
        mine = np.flatnonzero(lengths & size)
        # A run takes the lower bits of its length first.
        needed[level][firsts[mine] + (lengths[mine] & (size - 1))] = True
        if level + 1 < levels:
            needed[level] |= needed[level + 1]
            needed[level][size:] |= needed[level + 1][:-size]
    return needed


def _added(
    result: pa.Table, held: Integers, parts: pa.Table, mine: Integers, merge: Merge
) -> tuple[pa.Table, Integers]:
    """``result``, of the runs ``held``, followed by or merged with ``parts``, of the runs ``mine``."""
    there = np.isin(mine, held, assume_unique=True)
    both, new = np.flatnonzero(there), np.flatnonzero(~there)
    again = np.searchsorted(held, mine[both])
    kept = np.ones(len(held), np.bool_)
    kept[again] = False
    pieces = [result.filter(pa.array(kept)), parts.take(pa.array(new))]
    runs = [held[kept], mine[new]]
    if len(both):
        pieces.append(merge(result.take(pa.array(again)), parts.take(pa.array(both))))
        runs.append(mine[both])
    union = np.concatenate(runs)
    order = np.argsort(union, kind="stable")
    return pa.concat_tables(pieces).combine_chunks().take(pa.array(order)), union[order]
