"""Bulk access to one state table by key columns, over a :class:`StateView`, which knows keys by their bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.contracts.state import StateView
from epochal.state.codec import KeyCodec
from epochal.state.column_bytes import Columns, Mask, ends_of_prefixes
from epochal.state.keygroups import Groups
from epochal.state.table import StateTable


@dataclass(frozen=True)
class Entries:
    """What list or map state holds for some keys, in the order of the keys, and of the sub-key within each.

    ``rows`` has the sub-key and value columns; ``owner[i]`` is the position of the key that ``rows[i]`` belongs to.
    """

    owner: npt.NDArray[np.int64]
    rows: pa.Table


class TableAccess:
    """Reads of one state table at the parent epoch. ``groups``: the keys' key groups; left out, they are computed."""

    def __init__(self, table: StateTable, view: StateView, max_parallelism: int) -> None:
        self._view = view
        self._max_parallelism = max_parallelism
        self._table = table
        self._keys = KeyCodec(table.key_schema)
        self._owners = KeyCodec(table.owner_schema)
        self._entry_schema = pa.schema([*list(table.key_schema)[len(table.key) :], *table.value_schema])

    def get(self, keys: Columns, groups: Groups | None = None) -> tuple[Mask, pa.Table]:
        """Which full keys (key and sub-key columns) there are, and their value columns, as many rows as keys.

        The values of a key that is not there are all null.
        """
        return self._view.lookup(self._groups(keys, groups), self._keys.encode_array(keys))

    def entries(self, keys: Columns, groups: Groups | None = None) -> Entries:
        """All entries of list or map state for each of these operator keys (key columns, without sub-key)."""
        prefixes = self._owners.encode_array(keys)
        found = self._view.ranges(self._groups(keys, groups), prefixes, ends_of_prefixes(prefixes))
        sub_keys = self._keys.decode(found.keys).columns[len(self._table.key) :]
        return Entries(found.owner, pa.table([*sub_keys, *found.values.columns], schema=self._entry_schema))

    def _groups(self, keys: Columns, groups: Groups | None) -> Groups:
        return self._table.key_groups(keys, self._max_parallelism) if groups is None else groups
