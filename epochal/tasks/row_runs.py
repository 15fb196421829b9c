"""Runs of rows, each reduced to one row by a merge of two: the panes of windows, the parts of sessions.

A merge only has to be associative, and takes whole columns at a time. Runs of 1, 2, 4, .. rows are merged once
however many longer runs they are part of, so that windows that overlap cost about what their rows do, not what they
hold in all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]
Merge = Callable[[pa.Table, pa.Table], pa.Table]
"""Row i of the result is row i of the first and of the second; their columns are the same."""


@dataclass(frozen=True)
class Runs:
    """Run ``i`` is the rows from ``firsts[i]`` to before ``ends[i]``, at least one. Two arrays of one length, int64."""

    firsts: Integers
    ends: Integers


def reduced(rows: pa.Table, runs: Runs, merge: Merge) -> pa.Table:
    """A row for each run, in their order: its rows merged, the first ones first."""
    lengths = runs.ends - runs.firsts
    if not len(lengths) or lengths.max() == 1:
        return rows.take(pa.array(runs.firsts))
    result = rows.schema.empty_table()
    held = np.zeros(0, np.int64)  # the runs that ``result`` has a row of, ascending
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
    """By level: where the runs of ``2 ** level`` rows begin that some run is made of."""
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
    """``result``, of the runs ``held``, and then ``parts``, of the runs ``mine``, of which some are held."""
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
