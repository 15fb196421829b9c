"""Offsets of punctuation records. The driver reads all records once to find them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends.kafka.connection import Connection
from epochal.connectors.kafka.offsets import OffsetRange
from epochal.connectors.kafka.reading import RangeReader


class Punctuations:
    """Punctuation records, which have the key ``key``. Each offset is read only once per attempt."""

    def __init__(self, connection: Connection, key: bytes) -> None:
        self._connection = connection
        self._key = key
        self._looked: dict[tuple[str, int], int] = {}
        self._ends: dict[tuple[str, int], list[int]] = defaultdict(list)

    def look(self, ranges: Sequence[OffsetRange]) -> None:
        """Search these ranges for punctuation. Raises the errors of :class:`RangeReader`."""
        unseen = [self._unseen(range) for range in ranges]
        left = [range for range in unseen if range.length > 0]
        if not left:
            return
        found: list[tuple[str, int, int]] = []
        with RangeReader(self._connection, left, ("key",)) as reader:
            for records in reader:
                matching = pc.indices_nonzero(pc.equal(records.keys, pa.scalar(self._key, pa.binary())))
                found += [records.where(row) for row in matching.to_pylist()]
        for topic, partition, offset in sorted(found):
            self._ends[topic, partition].append(offset + 1)
        for range in left:
            self._looked[range.topic, range.partition] = range.end

    def first_after(self, topic: str, partition: int, position: int) -> int | None:
        """The offset after the first punctuation at or after ``position``; ``None`` if none has been found."""
        ends = [end for end in self._ends[topic, partition] if end > position]
        self._ends[topic, partition] = ends
        return ends[0] if ends else None

    def _unseen(self, range: OffsetRange) -> OffsetRange:
        since = max(range.start, self._looked.get((range.topic, range.partition), 0))
        return OffsetRange(range.topic, range.partition, since, range.end)
