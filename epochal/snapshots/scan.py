"""Rows of a state table at a snapshot in the order of their addresses, a page at a time.

Files are sorted by key group first, so the order of keys has to be made: for a table of moderate size once, and kept
for the next page; of a larger one for each page, a range of key groups after the other, so that memory is bounded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.snapshots.kept import KeptInMemory
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.row_groups import Groups
from epochal.snapshots.search import TableSearch
from epochal.state.codec import KeyCodec
from epochal.state.table import StateTable

ROWS_AT_ONCE = 2_000_000
"""Rows of files whose order is made in memory at once."""
_KEPT_BYTES = 512 << 20

_kept: KeptInMemory[_Sorted] = KeptInMemory(_KEPT_BYTES)


@dataclass(frozen=True)
class ScannedRows:
    """``keys``: the encoded addresses, in order. ``rows``: full key and value columns. ``more``: this is not all."""

    keys: list[bytes]
    rows: pa.Table
    more: bool


@dataclass(frozen=True)
class _Sorted:
    keys: pa.BinaryArray
    rows: pa.Table

    def page(self, prefix: bytes, after: bytes | None, limit: int) -> ScannedRows:
        first = bisect_left(self, prefix)
        if after is not None:
            first = max(first, bisect_right(self, after))
        keys: list[bytes] = self.keys[first : first + limit + 1].to_pylist()
        found = [key for key in keys if key.startswith(prefix)]
        return ScannedRows(found[:limit], self.rows.slice(first, min(limit, len(found))), len(found) > limit)

    def __getitem__(self, place: int) -> bytes:
        key: bytes = self.keys[place].as_py()
        return key

    def __len__(self) -> int:
        return len(self.keys)


def scan(
    reader: SnapshotReader, id: str, prefix: bytes, after: bytes | None, limit: int, groups: Groups | None = None
) -> ScannedRows:
    """At most ``limit`` rows whose encoded key begins with ``prefix`` and comes after ``after``.

    ``groups``: the key groups that these keys can be in, where they are known. Raises ``FileMissing``,
    ``FileCorrupt``, ``NotFound``.
    """
    table, search = reader.table(id), reader.search(id)
    if groups is not None:
        return _sorted(table, search.of_groups(groups)).page(prefix, after, limit)
    most = sum(file.file.rows for file in search.files)
    if most <= ROWS_AT_ONCE:
        return _whole(reader, table, search).page(prefix, after, limit)
    found = _Sorted(pa.array([], pa.binary()), table.delta_schema.empty_table().drop_columns(["_op", "_kg"]))
    parts = -(-most // ROWS_AT_ONCE)
    for some in np.array_split(np.arange(reader.manifest.max_parallelism, dtype=np.int32), parts):
        page = _sorted(table, search.of_groups(some)).page(prefix, after, limit + 1)
        rows = pa.concat_tables([found.rows, page.rows])
        found = _sorted(table, rows)
        found = _Sorted(found.keys[: limit + 1], found.rows.slice(0, limit + 1))
    return found.page(prefix, after, limit)


def _whole(reader: SnapshotReader, table: StateTable, search: TableSearch) -> _Sorted:
    place = (reader.reference.sha256, table.id)
    kept = _kept.get(place)
    if kept is None:
        kept = _sorted(table, search.of_groups(None))
        _kept.put(place, kept, kept.keys.nbytes + kept.rows.nbytes)
    return kept


def _sorted(table: StateTable, rows: pa.Table) -> _Sorted:
    rows = rows.select([*table.key_schema.names, *table.value_schema.names])
    keys = KeyCodec(table.address_schema).encode_array(rows)
    order = pc.sort_indices(keys)
    return _Sorted(keys.take(order), rows.take(order).combine_chunks())
