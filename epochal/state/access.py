"""Bulk access to one state table as Arrow tables, over the bytes that a :class:`StateView` speaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.contracts.state import StateView
from epochal.state.codec import KeyCodec, RowCodec
from epochal.state.column_bytes import Columns, Mask
from epochal.state.keygroups import Groups, key_groups
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
        self._owner_schema = pa.schema([column.to_arrow(nullable=False) for column in table.key])
        self._keys = KeyCodec(table.key_schema)
        self._owners = KeyCodec(self._owner_schema)
        self._values = RowCodec(table.value_schema)
        self._entry_schema = pa.schema([*list(table.key_schema)[len(table.key) :], *table.value_schema])

    def get(self, keys: Columns, groups: Groups | None = None) -> tuple[Mask, pa.Table]:
        """Which full keys (key and sub-key columns) there are, and their value columns, as many rows as keys.

        The values of a key that is not there are all null.
        """
        encoded = self._keys.encode(keys)
        rows = pa.array(self._view.get_many(self._groups(keys, groups), encoded), pa.binary())
        found: Mask = rows.is_valid().to_numpy(zero_copy_only=False)
        return found, self._values.decode(rows)

    def entries(self, keys: Columns, groups: Groups | None = None) -> Entries:
        """All entries of list or map state for each of these operator keys (key columns, without sub-key)."""
        prefixes = self._owners.encode(keys)
        scan = self._view.scan
        found = [
            scan(group, prefix) for group, prefix in zip(self._groups(keys, groups).tolist(), prefixes, strict=True)
        ]
        owner = np.repeat(np.arange(len(found)), [len(entries) for entries in found])
        full_keys = self._keys.decode([key for entries in found for key, _ in entries])
        values = self._values.decode([value for entries in found for _, value in entries])
        columns = [*full_keys.columns[len(self._owner_schema) :], *values.columns]
        return Entries(owner, pa.table(columns, schema=self._entry_schema))

    def _groups(self, keys: Columns, groups: Groups | None) -> Groups:
        return key_groups(keys, self._owner_schema, self._max_parallelism) if groups is None else groups
