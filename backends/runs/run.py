"""A run: immutable rows of a state table, at most one of each key, in segments without common key groups.

A large run has many segments, so that a merge and a restore need the memory of a few segments only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from epochal.backends.runs.segment import Positions, Segment
from epochal.contracts.state import KeyGroups
from epochal.snapshots.merge_policy import divided

SEGMENT_BYTES: Final = 256 << 20
"""Maximum size of a segment that a merge creates, as far as key groups are smaller."""


@dataclass(frozen=True)
class Run:
    """Runs with the same segments are equal."""

    segments: tuple[Segment, ...]

    def __len__(self) -> int:
        """Number of rows."""
        return sum(map(len, self.segments))

    @property
    def is_in_files(self) -> bool:
        return all(segment.name for segment in self.segments)

    @cached_property
    def in_order(self) -> Run:
        """The same rows in the order of (key group, key) in each segment."""
        return Run(tuple(segment.in_order for segment in self.segments))

    def by_segment(self, groups: KeyGroups) -> Iterator[tuple[Segment, Positions]]:
        """The segments that can have rows of these key groups, each with the positions of its key groups, ascending."""
        if len(self.segments) == 1:
            yield self.segments[0], np.arange(len(groups))
            return
        numbers = self._numbers.take(groups, mode="clip")
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(len(self.segments) + 1))
        for segment, first, end in zip(self.segments, bounds[:-1], bounds[1:], strict=True):
            if first < end:
                yield segment, order[first:end]

    @cached_property
    def _numbers(self) -> npt.NDArray[np.int16]:
        """Number of the segment of each key group, -1 without one; the last entry stands for all greater ones."""
        greatest = max(int(segment.key_groups.max(initial=-1)) for segment in self.segments)
        numbers = np.full(greatest + 2, -1, np.int16)
        for number, segment in enumerate(self.segments):
            numbers[segment.key_groups] = number
        return numbers


def parts_of(groups: range, nbytes: int) -> tuple[range, ...]:
    """Divide the key groups of a subtask, whose rows have ``nbytes``, for segments of limited size.

    The number of parts is a power of two, as is that of the store's files: segments then keep their key groups.
    """
    parts = 1
    while nbytes > parts * SEGMENT_BYTES and 2 * parts <= len(groups):
        parts *= 2
    return divided(groups, parts)
