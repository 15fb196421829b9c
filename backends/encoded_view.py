"""Views of local stores that keep rows as the bytes of :mod:`epochal.state.codec`: columns outside, bytes inside.

Key groups are worked through one after another: the rows of each stay in the processor's cache meanwhile.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.backends.delta import OpenView
from epochal.contracts.state import Found, KeyGroups, StateRows
from epochal.state.codec import RowCodec
from epochal.state.column_bytes import as_list
from epochal.state.table import StateTable


class KeyRange(NamedTuple):
    """Keys from ``low`` on and below ``high``; ``None`` is open."""

    low: bytes | None
    high: bytes | None


class FoundRows(NamedTuple):
    """Keys, ascending, and their values."""

    keys: Sequence[bytes]
    values: Sequence[bytes]


class EncodedView(OpenView):
    """A view whose local store finds encoded values by encoded keys, in one key group at a time."""

    def __init__(self, table: StateTable) -> None:
        self._codec = RowCodec(table.value_schema)

    @abstractmethod
    def values_in(self, group: int, keys: Sequence[bytes]) -> Iterable[bytes | None]:
        """The value of each key of one key group, ``None`` where there is none."""

    @abstractmethod
    def ranges_in(self, group: int, ranges: Iterable[KeyRange], limit: int | None) -> Iterable[FoundRows]:
        """The rows of each range of one key group, at most ``limit`` of each."""

    def lookup(self, groups: KeyGroups, keys: pa.BinaryArray) -> tuple[Found, pa.Table]:
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
        asked = list(map(KeyRange, as_list(low), as_list(high)))
        found: list[FoundRows] = [FoundRows((), ())] * len(asked)
        for group, first, end in _runs(groups[order]):
            positions = order[first:end].tolist()
            for position, rows in zip(
                positions, self.ranges_in(group, (asked[position] for position in positions), limit), strict=True
            ):
                found[position] = rows
        keys = pa.array(list(chain.from_iterable(rows.keys for rows in found)), pa.binary())
        values = self._codec.decode(list(chain.from_iterable(rows.values for rows in found)))
        return StateRows(np.repeat(np.arange(len(found)), [len(rows.keys) for rows in found]), keys, values)

    def get(self, group: int, key: bytes) -> Mapping[str, Any] | None:
        (value,) = self.values_in(group, (key,))
        return None if value is None else self._codec.decode_one(value)


def _by_group(groups: KeyGroups) -> npt.NDArray[np.int64]:
    return np.argsort(groups.astype(np.int16), kind="stable")


def _runs(in_order: KeyGroups) -> Iterator[tuple[int, int, int]]:
    """Of sorted key groups: each, with its first position and the one after its last."""
    bounds = [0, *(np.flatnonzero(np.diff(in_order)) + 1).tolist(), len(in_order)]
    for first, end in pairwise(bounds):
        if first < end:
            yield int(in_order[first]), first, end
