"""Bases: all rows of a state table at one epoch, in files by range of key groups; and compaction, which makes them.

Columns of ``StateTable.delta_schema`` without ``_op``, sorted by (key group, key). The file's metadata ``epochal``
(JSON) says of itself: format, table, branch, epoch, first and last key group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.identity import EpochKey
from epochal.snapshots import layout
from epochal.snapshots.chain import Chain
from epochal.snapshots.delta import PUT, decode_parquet, encode_parquet, read_delta, rows_of_groups
from epochal.snapshots.manifest import BaseFile, DeltaFile
from epochal.snapshots.store import SnapshotStore
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable

RANGES = 4
_MERGED_AT_ONCE = 1 << 20
"""Rows of deltas that are gathered before they are merged: memory is bounded by these and the range's own rows."""


def base_schema(table: StateTable) -> pa.Schema:
    """``_kg`` int32, the full key, the value columns."""
    return pa.schema([field for field in table.delta_schema if field.name != "_op"])


def compact(
    store: SnapshotStore, table: StateTable, chain: Chain, max_parallelism: int, ranges: int = RANGES
) -> tuple[BaseFile, ...]:
    """Write the bases of a state table at ``chain.at``: at least one file, also when there are no rows.

    They count from the moment a manifest names them, beside those of every other state table at the same epoch.
    """
    if chain.at is None:
        raise ValueError("there is no epoch yet that a base could be of")
    bounds = np.linspace(0, max_parallelism, min(ranges, max_parallelism) + 1).astype(int).tolist()
    written: list[BaseFile] = []
    for first, end in pairwise(bounds):
        rows = merged(store, table, chain, first, end - 1)
        if rows.num_rows or (end == max_parallelism and not written):
            written.append(_write(store, table, chain.at, first, end - 1, rows))
    return tuple(written)


def merged(store: SnapshotStore, table: StateTable, chain: Chain, first_group: int, last_group: int) -> pa.Table:
    """The rows of a range of key groups at ``chain.at``: columns of :func:`base_schema`, sorted by (key group, key)."""
    overlapping = [base for base in chain.bases if _overlaps(base, first_group, last_group)]
    overlapping.sort(key=lambda base: base.first_group)
    bases = [read_base(store, table, base) for base in overlapping]
    rows = pa.concat_tables([base_schema(table).empty_table(), *bases])
    rows = _tagged(rows_of_groups(rows, first_group, last_group))
    gathered: list[pa.Table] = []
    for delta in deltas_for(chain, range(first_group, last_group + 1)):
        gathered.append(rows_of_groups(read_delta(store, table, delta), first_group, last_group))
        if sum(changes.num_rows for changes in gathered) >= _MERGED_AT_ONCE:
            rows, gathered = _last_writes(table, [rows, *gathered]), []
    if gathered:
        rows = _last_writes(table, [rows, *gathered])
    return rows.drop_columns(["_op"]).select(base_schema(table).names)


def read_base(store: SnapshotStore, table: StateTable, base: BaseFile) -> pa.Table:
    """All rows of a base, checked, with the columns of :func:`base_schema`."""
    of = f"state {table.id!r} at {base.at}"
    return decode_parquet(store, table, store.read_file(base.file, of), base.file, base_schema(table))


def deltas_for(chain: Chain, groups: Iterable[int]) -> Iterator[DeltaFile]:
    """The chain's deltas, oldest first, that can hold some of these key groups."""
    wanted = set(groups)
    for link in chain.links:
        for delta in link.deltas:
            if any(group % delta.parallelism == delta.subtask for group in wanted):
                yield delta


def _overlaps(base: BaseFile, first_group: int, last_group: int) -> bool:
    return base.first_group <= last_group and base.last_group >= first_group


def _tagged(rows: pa.Table) -> pa.Table:
    return rows.append_column(pa.field("_op", pa.string(), nullable=False), pa.repeat(PUT, rows.num_rows))


def _last_writes(table: StateTable, parts: list[pa.Table]) -> pa.Table:
    """What is left of rows and the changes to them, oldest first: the last write of each key, deletes dropped."""
    names = table.delta_schema.names
    rows = pa.concat_tables([part.select(names) for part in parts]).combine_chunks()
    keys = KeyCodec(table.key_schema).encode_array(rows)
    numbered = pa.table({"key": keys, "position": np.arange(len(keys)), "group": rows.column("_kg")})
    last = numbered.group_by("key", use_threads=False).aggregate([("position", "max"), ("group", "max")])
    order = pc.sort_indices(last, sort_keys=[("group_max", "ascending"), ("key", "ascending")])
    rows = rows.take(last.column("position_max").take(order))
    return rows.filter(pc.equal(rows.column("_op"), PUT))


def _write(
    store: SnapshotStore, table: StateTable, at: EpochKey, first_group: int, last_group: int, rows: pa.Table
) -> BaseFile:
    about: dict[str, object] = {"format": 1, "table": table.id, "branch": at.branch, "epoch": at.epoch}
    data = encode_parquet(table, rows, {**about, "first_group": first_group, "last_group": last_group})
    path = layout.base(at, table.id, first_group, last_group)
    file = store.write_file(path, data, rows.num_rows)
    return BaseFile(table=table.id, at=at, first_group=first_group, last_group=last_group, file=file)
