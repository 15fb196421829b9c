"""Bulk access to one state table by key columns, over a :class:`StateView`, which addresses rows by encoded keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.conditions import BEGINNING, END
from epochal.contracts.state import StateRows, StateView
from epochal.state.column_bytes import Columns, Mask, ends_of_prefixes
from epochal.state.expiry import microseconds
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import Groups
from epochal.state.table import StateTable

BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class Entries:
    """Entries of list or map state for some keys, in the order of the keys, then of the sub-key.

    ``rows`` has the sub-key and value columns; ``owner[i]`` is the position of the key that ``rows[i]`` belongs to.
    """

    owner: npt.NDArray[np.int64]
    rows: pa.Table


class TableAccess:
    """Reads of one state table at the parent epoch. ``groups``: the keys' key groups; computed if omitted."""

    def __init__(self, table: StateTable, view: StateView, max_parallelism: int) -> None:
        self._view = view
        self._max_parallelism = max_parallelism
        self._table = table
        self._keys = KeyCodec(table.key_schema)
        self._owners = KeyCodec(table.owner_schema)
        self._entry_schema = pa.schema([*list(table.key_schema)[len(table.key) :], *table.value_schema])

    def get(self, keys: Columns, groups: Groups | None = None) -> tuple[Mask, pa.Table]:
        """A mask of the full keys (all columns of ``full_key``) that exist, and their value columns, one row per key.

        The values of a missing key are all null.
        """
        return self.get_encoded(self.encoded(keys), self._groups(keys, groups))

    def encoded(self, keys: Columns) -> pa.BinaryArray:
        """The encoded form of these full keys."""
        return self._keys.encode_array(keys)

    def get_encoded(self, keys: pa.BinaryArray, groups: Groups) -> tuple[Mask, pa.Table]:
        """Like :meth:`get`, for :meth:`encoded` keys."""
        return self._view.lookup(groups, keys)

    def entries(self, keys: Columns, groups: Groups | None = None) -> Entries:
        """All entries of list or map state for each of these operator keys (key columns, without sub-key).

        Raises ``ValueError`` for a time-ordered table, where the rows of a key are not adjacent; :meth:`due` reads
        ranges of time.
        """
        if self._table.time is not None:
            raise ValueError(f"state {self._table.id!r} is time-ordered: its rows are read by time, not by key")
        prefixes = self._owners.encode_array(keys)
        found = self._view.ranges(self._groups(keys, groups), prefixes, ends_of_prefixes(prefixes))
        sub_keys = self._keys.decode(found.keys).columns[len(self._table.key) :]
        return Entries(found.owner, pa.table([*sub_keys, *found.values.columns], schema=self._entry_schema))

    def due(
        self, groups: Sequence[int] | Groups, low: int, high: int, batch_rows: int = BATCH_ROWS
    ) -> Iterator[pa.Table]:
        """The rows of a time-ordered table with ``low <= time < high`` (microseconds), in these key groups.

        Yields tables of at most ``batch_rows`` rows, or the number of key groups if that is greater: ``_kg``, the full
        key, the value columns. The rows of a key group are sorted by time and then by key, across all tables; rows of
        different key groups may be interleaved.
        """
        if low >= high or low > END or high <= BEGINNING:
            return
        low_key, high_key = _time_key(low), _time_key(high)
        asked: Groups = np.asarray(groups, np.int32)
        lows = pa.array([low_key] * len(asked), pa.binary())
        while len(asked):
            limit = max(1, batch_rows // len(asked))
            highs = pa.array([high_key] * len(asked), pa.binary())
            found = self._view.ranges(asked, lows, highs, limit)
            counts = np.bincount(found.owner, minlength=len(asked))
            if found.values.num_rows:
                yield self._rows(asked[found.owner], found)
            more = np.flatnonzero(counts == limit)
            last = found.keys.take(pa.array(np.cumsum(counts)[more] - 1))
            asked, lows = asked[more], pc.binary_join_element_wise(last, b"\0", b"")

    def groups_with(self, groups: Sequence[int] | Groups, low: int, high: int) -> Groups:
        """The given key groups of a time-ordered table that have rows with ``low <= time < high`` (microseconds)."""
        asked: Groups = np.asarray(groups, np.int32)
        lows, highs = (pa.array([_time_key(time)] * len(asked), pa.binary()) for time in (low, high))
        return asked[np.unique(self._view.ranges(asked, lows, highs, 1).owner)]

    def earliest(self, groups: Sequence[int] | Groups, low: int = BEGINNING) -> int | None:
        """The earliest time at or after ``low`` in these key groups of a time-ordered table, in microseconds.

        ``None``: no such row exists.
        """
        asked: Groups = np.asarray(groups, np.int32)
        lows, open_end = pa.array([_time_key(low)] * len(asked), pa.binary()), pa.nulls(len(asked), pa.binary())
        keys = self._view.ranges(asked, lows, open_end, 1).keys
        if not len(keys):
            return None
        earliest: int = pc.min(microseconds(self._keys.decode(keys).column(0))).as_py()
        return earliest

    def _rows(self, groups: Groups, found: StateRows) -> pa.Table:
        keys = self._keys.decode(found.keys)
        fields = [pa.field("_kg", pa.int32(), nullable=False), *self._table.key_schema, *self._table.value_schema]
        return pa.table([groups, *keys.columns, *found.values.columns], schema=pa.schema(fields))

    def _groups(self, keys: Columns, groups: Groups | None) -> Groups:
        return self._table.key_groups(keys, self._max_parallelism) if groups is None else groups


def _time_key(time: int) -> bytes | None:
    """The prefix of keys with this time; ``None``, an open bound, before and after all times."""
    return None if time <= BEGINNING or time > END else (time + (1 << 63)).to_bytes(8, "big")
