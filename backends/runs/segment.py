"""One segment of a run: immutable rows of some key groups of a state table, at most one of each key.

Rows lie in the order of their keys' hashes: look-ups of many keys and merges take one pass. Where ranges are read, and
after a restore, rows lie in the order of (key group, key), with an index by hash beside them. A row can mark its key as
deleted. Strings have 64-bit offsets: a segment may hold more than 2 GiB of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends.runs.hashing import Hashes
from epochal.contracts.state import KeyGroups
from epochal.state.key_order import common_width, order_by_group_and_key, taken

_ONE_BY_ONE = 32
"""Number of ranges below which each bound is searched separately."""

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Segment:
    """Columns of a segment. ``groups``, ``keys``, ``deleted``, ``values``: one entry per row. ``hashes`` ascend.

    ``at``: the row of each hash's key, where rows are in order; ``None`` where they are ordered by hash. ``name``: name
    of its file; ``None`` for a segment that is in memory only.
    """

    groups: KeyGroups
    keys: pa.LargeBinaryArray
    deleted: Mask | None
    values: pa.Table
    hashes: Hashes
    at: npt.NDArray[np.uint32] | None
    name: str | None = None

    @classmethod
    def of(
        cls, groups: KeyGroups, keys: pa.BinaryArray, deleted: Mask, values: pa.Table, hashes: Hashes, in_order: bool
    ) -> Segment:
        """Make a segment of rows in the order of (key group, key); ``in_order`` keeps that order. ``hashes``: one per
        row."""
        order = np.argsort(hashes)
        columns = [as_large(one_chunk(values.column(name))) for name in values.column_names]
        values = pa.table(columns, names=values.column_names)
        marks = deleted if deleted.any() else None
        if in_order:
            return cls(groups, as_large(keys), marks, values, hashes[order], order.astype(np.uint32))
        keys = as_large(taken(keys, order, common_width(keys)))
        marks = None if marks is None else marks[order]
        return cls(groups[order], keys, marks, values.take(pa.array(order)), hashes[order], None)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Size of the columns."""
        arrays = (self.groups, self.deleted, self.hashes, self.at)
        return int(self.keys.nbytes + self.values.nbytes + sum(each.nbytes for each in arrays if each is not None))

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """:attr:`values` in one chunk."""
        columns = [one_chunk(column) for column in self.values.columns]
        return pa.RecordBatch.from_arrays(columns, names=self.values.column_names)

    @cached_property
    def key_groups(self) -> KeyGroups:
        """Key groups with rows, ascending."""
        return np.flatnonzero(np.bincount(self.groups)).astype(np.int32)

    @cached_property
    def width(self) -> int | None:
        """Common length of the keys in bytes; ``None`` if lengths differ."""
        return common_width(self.keys)

    @cached_property
    def in_order(self) -> Segment:
        """The same rows in the order of (key group, key)."""
        if self.at is not None:
            return self
        order, _ = order_by_group_and_key(self.groups, self.keys)
        at = np.empty(len(order), np.uint32)
        at[order] = np.arange(len(order), dtype=np.uint32)
        return Segment(
            self.groups[order],
            taken(self.keys, order, self.width),
            None if self.deleted is None else self.deleted[order],
            self.values.take(pa.array(order)),
            self.hashes,
            at,
        )

    def of_groups(self, groups: range) -> Segment:
        """Return the rows of some key groups, in their present order; ``self`` if all rows are of these."""
        if set(self.key_groups.tolist()) <= set(groups):
            return self
        mine = np.isin(self.groups, np.array(groups, np.int32))
        rows, kept = np.flatnonzero(mine), mine if self.at is None else mine[self.at]
        at = None if self.at is None else (np.cumsum(mine) - 1)[self.at[kept]].astype(np.uint32)
        deleted = None if self.deleted is None else self.deleted[rows]
        return Segment(
            self.groups[rows],
            taken(self.keys, rows, self.width),
            deleted if deleted is not None and deleted.any() else None,
            self.values.take(pa.array(rows)),
            self.hashes[kept],
            at,
        )

    @cached_property
    def _starts(self) -> tuple[KeyGroups, Positions]:
        """Key groups of a segment in order, and the first row of each, followed by the number of rows."""
        bounds = np.flatnonzero(np.diff(self.groups, prepend=-1))
        return self.groups[bounds], np.append(bounds, len(self.groups)).astype(np.int64)

    def find(self, keys: pa.LargeBinaryArray, hashes: Hashes) -> Positions:
        """Return the row of each key, -1 for a missing key. Fastest when ``hashes`` ascend."""
        found = np.full(len(keys), -1, np.int64)
        if not len(self):
            return found
        asked, places = np.arange(len(keys)), np.searchsorted(self.hashes, hashes)
        while True:  # repeats only for keys that share a hash with another key
            alike = self.hashes.take(places, mode="clip") == hashes[asked]
            alike &= places < len(self)
            if not alike.all():
                asked, places = asked[alike], places[alike]
            if not len(asked):
                return found
            rows = places if self.at is None else self.at[places].astype(np.int64)
            stored = self.keys.take(pa.array(rows)) if self.at is None else taken(self.keys, rows, self.width)
            sought = keys if len(asked) == len(keys) else keys.take(pa.array(asked))
            same = np.asarray(pc.equal(stored, sought), bool)
            found[asked[same]] = rows[same]
            asked, places = asked[~same], places[~same] + 1

    def find_one(self, key: bytes, hash: np.uint64) -> int:
        """Like :meth:`find`, for one key."""
        place = int(np.searchsorted(self.hashes, hash))
        while place < len(self) and self.hashes[place] == hash:
            row = place if self.at is None else int(self.at[place])
            if self.keys[row].as_py() == key:
                return row
            place += 1
        return -1

    def between(self, groups: KeyGroups, low: pa.Array, high: pa.Array) -> tuple[Positions, Positions]:
        """Return the first row of each range and the row after its last; for an empty range, its insertion point.

        The segment must be in order. Bounds are large binary; null is open.
        """
        present, starts = self._starts
        which = np.searchsorted(present, groups)
        there = which < len(present)
        there[there] = present[which[there]] == groups[there]
        begin, end = starts[which].copy(), starts[which].copy()
        end[there] = starts[which[there] + 1]
        first = self._first_not_below(low, begin, end, begin)
        return first, np.maximum(first, self._first_not_below(high, first, end, end))

    def _first_not_below(self, bounds: pa.Array, begin: Positions, end: Positions, open: Positions) -> Positions:
        """Return the first row from ``begin`` on whose key is not below the bound; ``end`` if there is none."""
        if len(begin) < _ONE_BY_ONE:
            keys, found = _Keys(self.keys), open.copy()
            for place, bound in enumerate(bounds.to_pylist()):
                if bound is not None:
                    found[place] = bisect_left(keys, bound, int(begin[place]), int(end[place]))
            return found
        is_open = bounds.is_null().to_numpy(zero_copy_only=False)
        first, last = np.where(is_open, open, begin), np.where(is_open, open, end)
        while len(under_way := np.flatnonzero(first < last)):
            middle = (first[under_way] + last[under_way]) // 2
            below = pc.less(self.keys.take(pa.array(middle)), bounds.take(pa.array(under_way)))
            is_below = below.to_numpy(zero_copy_only=False)
            first[under_way] = np.where(is_below, middle + 1, first[under_way])
            last[under_way] = np.where(is_below, last[under_way], middle)
        return first


class _Keys(Sequence[bytes]):
    def __init__(self, keys: pa.LargeBinaryArray) -> None:
        self._keys = keys

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes]: ...
    def __getitem__(self, place: Any) -> Any:
        return self._keys[place].as_py()

    def __len__(self) -> int:
        return len(self._keys)


def as_large(array: pa.Array) -> pa.Array:
    """Cast an array of strings or binary to 64-bit offsets."""
    if pa.types.is_string(array.type):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if pa.types.is_binary(array.type) else array


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays([as_large(each) for each in column.chunks] or [as_large(pa.array([], column.type))])
