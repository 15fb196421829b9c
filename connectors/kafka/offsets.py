"""Offsets: the position of a source in each partition, and the ranges of the next slice."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Offsets = dict[str, dict[int, int]]
"""Keyed by topic and partition."""


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The offsets ``[start, end)`` of one partition; ``end`` is exclusive."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def length(self) -> int:
        """The number of offsets, an upper bound for records: commit markers and compacted records use offsets too."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}, partition {self.partition}, offsets {self.start} to {self.end}"


def ranges_between(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """The ranges between two positions. Omits partitions whose position is the same."""
    found = []
    for topic, partitions in sorted(end.items()):
        for partition, until in sorted(partitions.items()):
            since = start.get(topic, {}).get(partition, until)
            if until > since:
                found.append(OffsetRange(topic, partition, since, until))
    return found


def limited(ranges: Sequence[OffsetRange], limit: int | None) -> list[OffsetRange]:
    """Cut the ranges to about ``limit`` offsets in total, in proportion. Each partition keeps at least one offset."""
    total = sum(range.length for range in ranges)
    if limit is None or total <= limit:
        return list(ranges)
    shares = [max(1, range.length * limit // total) for range in ranges]
    for index in sorted(builtins.range(len(shares)), key=lambda index: -shares[index]):
        shares[index] -= min(max(0, sum(shares) - limit), shares[index] - 1)
    return [
        OffsetRange(range.topic, range.partition, range.start, range.start + share)
        for range, share in zip(ranges, shares, strict=True)
    ]


def moved(positions: Offsets, ranges: Sequence[OffsetRange]) -> Offsets:
    """The positions after the ranges."""
    after = {topic: dict(partitions) for topic, partitions in positions.items()}
    for range in ranges:
        after.setdefault(range.topic, {})[range.partition] = range.end
    return after


def grouped(ranges: Sequence[OffsetRange], tasks: int) -> list[tuple[OffsetRange, ...]]:
    """Distribute the ranges over at most ``tasks`` groups of similar size, the largest ranges first."""
    groups: list[list[OffsetRange]] = [[] for _ in range(min(tasks, len(ranges)))]
    for each in sorted(ranges, key=lambda each: -each.length):
        min(groups, key=lambda group: sum(other.length for other in group)).append(each)
    return [tuple(group) for group in groups]


def as_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets for a manifest, with string keys for JSON."""
    return {
        topic: {str(partition): offset for partition, offset in sorted(partitions.items())}
        for topic, partitions in sorted(offsets.items())
    }


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        topic: {int(partition): int(offset) for partition, offset in partitions.items()}
        for topic, partitions in offsets.items()
    }


def pairs(offsets: Offsets) -> Iterator[tuple[str, int]]:
    """Iterate over all pairs of topic and partition."""
    for topic, partitions in offsets.items():
        for partition in partitions:
            yield topic, partition
