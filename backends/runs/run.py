"""A run: immutable rows of a state table, at most one of each key, in segments without common key groups.

A large run has many segments, so that a merge and a restore need the memory of a few segments only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from epochal.backends.runs.segment import Segment

SEGMENT_BYTES: Final = 128 << 20
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


def divided(groups: range, nbytes: int) -> list[range]:
    """Divide the key groups of a subtask, whose rows have ``nbytes``, for segments of limited size.

    The number of parts is a power of two, as is that of the store's files: segments then keep their key groups.
    """
    parts = 1
    while nbytes > parts * SEGMENT_BYTES and 2 * parts <= len(groups):
        parts *= 2
    return [groups[first::parts] for first in range(parts)]
