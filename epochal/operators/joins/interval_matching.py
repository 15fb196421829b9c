"""Matches rows of two streams by equal keys and by a range of distances in time, without a step per row.

Keys are represented by *codes*, numbers from 0; times are microseconds. As rows are sorted by (code, time), the
partners of a row are consecutive: a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from epochal.state.column_bytes import Mask

Integers = npt.NDArray[np.int64]
_LEAST: Final = -(2**63)
_GREATEST: Final = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Runs:
    """One run of positions for each row: run i has the positions ``first[i]`` up to ``first[i] + counts[i]``."""

    first: Integers
    counts: Integers

    def covered(self, size: int) -> Mask:
        """A mask of the positions below ``size`` that are in some run."""
        some = self.counts > 0
        begin, end = self.first[some], (self.first + self.counts)[some]
        steps = np.bincount(begin, minlength=size + 1) - np.bincount(end, minlength=size + 1)
        mask: Mask = np.cumsum(steps[:size]) > 0
        return mask

    def pairs(self, most: int) -> Iterator[tuple[Integers, Integers]]:
        """The number of the run and the position, for each position of each run, at most ``most`` at a time.

        A long run may be split into several parts.
        """
        ends = np.cumsum(self.counts)
        total = int(ends[-1]) if len(ends) else 0
        for start in range(0, total, most):
            stop = min(start + most, total)
            one, last = np.searchsorted(ends, [start, stop - 1], side="right")
            inside = np.minimum(ends[one : last + 1], stop) - np.maximum(
                ends[one : last + 1] - self.counts[one : last + 1], start
            )
            runs = np.repeat(np.arange(one, last + 1), inside)
            yield runs, self.first[runs] + np.arange(start, stop) - (ends - self.counts)[runs]


class TimesByCode:
    """An index of rows by (code, time) that finds runs. ``order``: the positions of the rows in sorted order."""

    def __init__(self, codes: Integers, times: Integers, code_count: int) -> None:
        self._least, self._greatest = (int(times.min()), int(times.max())) if len(times) else (0, 0)
        self._ranks: Integers | None = None
        # Code and time as one number in the same order; if 64 bits are too few, times are replaced by their ranks.
        self._width = self._greatest - self._least + 2
        if self._width * max(code_count, 1) > _GREATEST:
            self._ranks = np.unique(times)
            self._width = len(self._ranks) + 1
        packed = self._packed(codes, times)
        self.order: Integers = np.argsort(packed, kind="stable")
        self._sorted = packed[self.order]

    def __len__(self) -> int:
        return len(self.order)

    def near(self, codes: Integers, times: Integers, low: int, high: int) -> Runs:
        """For each of these rows, the rows of its code whose time minus its own is in ``[low, high]``.

        The positions refer to ``order``.
        """
        first = np.searchsorted(self._sorted, self._packed(codes, moved(times, low)))
        end = np.searchsorted(self._sorted, self._packed(codes, moved(times, high + 1)))
        return Runs(first, end - first)

    def extremes(self, code_count: int, codes: Integers, times: Integers) -> tuple[Integers, Integers, Integers]:
        """The codes of these rows, ascending, and the least and the greatest time of each."""
        present = np.bincount(codes, minlength=code_count) if len(codes) else np.zeros(code_count, np.int64)
        found = np.flatnonzero(present)
        ends = np.cumsum(present[found])
        sorted_times = times[self.order]
        return found, sorted_times[ends - present[found]], sorted_times[ends - 1]

    def _packed(self, codes: Integers, times: Integers) -> Integers:
        if self._ranks is not None:
            places = np.searchsorted(self._ranks, times)
        else:
            places = np.clip(times, self._least, min(self._greatest + 1, _GREATEST)) - self._least
        return codes * self._width + places


def moved(times: Integers, by: int) -> Integers:
    """``times + by``, limited to 64 bits."""
    limited = np.minimum(times, _GREATEST - by) if by > 0 else np.maximum(times, _LEAST - by)
    return limited + by
