"""Views of local stores that keep rows as the bytes of :mod:`epochal.state.row_codec`: columns at the interface, bytes
in the store. Key groups are processed one after another, so that the rows of each stay in the processor's cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.backends.delta import OpenView
from epochal.contracts.state import Found, KeyGroups, StateRows
from epochal.state.column_bytes import as_list
from epochal.state.row_codec import RowCodec
from epochal.state.table import StateTable

Bound = bytes | None
"""``None`` is open."""


class FoundRows(NamedTuple):
    """Rows of ranges, concatenated, each range in key order: number of rows per range, keys, values."""

    counts: Sequence[int]
    keys: Sequence[bytes]
    values: Sequence[bytes]


class EncodedView(OpenView):
    """A view whose local store finds encoded values by encoded keys, in one key group at a time."""

    def __init__(self, table: StateTable) -> None:
        self._codec = RowCodec(table.value_schema)

    @abstractmethod
    def values_in(self, group: int, keys: Sequence[bytes]) -> Iterable[bytes | None]:
        """The value of each key of one key group; ``None`` for a missing key."""

    @abstractmethod
    def ranges_in(self, group: int, low: Sequence[Bound], high: Sequence[Bound], limit: int | None) -> FoundRows:
        """The rows of some ranges of one key group, at most ``limit`` of each."""

    def lookup(self, groups: KeyGroups, keys: pa.BinaryArray) -> tuple[Found, pa.Table]:
        if len(groups) == 1:  # nothing to be arranged
            alone = list(self.values_in(int(groups[0]), as_list(keys)))
            return np.array([alone[0] is not None]), self._codec.decode(alone)
        order = _by_group(groups)
        in_order = as_list(keys.take(pa.array(order)))
        stored: list[bytes | None] = []
        for group, first, end in _runs(groups[order]):
            stored.extend(self.values_in(group, in_order[first:end]))
        rows = pa.array(stored, pa.binary())
        there = rows.is_valid().to_numpy(zero_copy_only=False)
        row_of = np.empty(len(order), np.int64)
        row_of[order] = np.cumsum(there) - 1
        found = np.empty(len(order), np.bool_)
        found[order] = there
        values = self._codec.decode(rows.drop_null() if rows.null_count else rows)
        return found, values.take(pa.array(row_of, mask=~found if rows.null_count else None))

    def ranges(
        self, groups: KeyGroups, low: pa.BinaryArray, high: pa.BinaryArray, limit: int | None = None
    ) -> StateRows:
        order = _by_group(groups)
        lows, highs = (as_list(bounds.take(pa.array(order))) for bounds in (low, high))
        counts: list[int] = []
        keys: list[bytes] = []
        values: list[bytes] = []
        for group, first, end in _runs(groups[order]):
            found = self.ranges_in(group, lows[first:end], highs[first:end], limit)
            counts += found.counts
            keys += found.keys
            values += found.values
        owner = np.repeat(order, counts)
        back = np.argsort(owner, kind="stable")
        rows = pa.array(back)
        return StateRows(owner[back], pa.array(keys, pa.binary()).take(rows), self._codec.decode(values).take(rows))

    def get(self, group: int, key: bytes) -> Mapping[str, Any] | None:
        (value,) = self.values_in(group, (key,))
        return None if value is None else self._codec.decode_one(value)


def _by_group(groups: KeyGroups) -> npt.NDArray[np.int64]:
    return np.argsort(groups.astype(np.int16), kind="stable")


def _runs(in_order: KeyGroups) -> Iterator[tuple[int, int, int]]:
    """Yield each of the sorted key groups with its first position and the position after its last."""
    bounds = [0, *(np.flatnonzero(np.diff(in_order)) + 1).tolist(), len(in_order)]
    for first, end in pairwise(bounds):
        if first < end:
            yield int(in_order[first]), first, end
