"""Bases: all rows of a state table at one epoch, in files by range of key groups; :mod:`compaction` makes them.

Columns of ``StateTable.delta_schema`` without ``_op``, sorted by (key group, key). The file's metadata ``epochal``
(JSON) says of itself: format, table, branch, epoch, first and last key group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from epochal.snapshots.chain import Chain
from epochal.snapshots.delta import decode_parquet, read_delta, rows_of_groups
from epochal.snapshots.manifest import BaseFile, DeltaFile
from epochal.snapshots.merging import applied, folded
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable


def base_schema(table: StateTable) -> pa.Schema:
    """``_kg`` int32, the full key, the value columns."""
    return pa.schema([field for field in table.delta_schema if field.name != "_op"])


def with_required_keys(table: StateTable, rows: pa.Table) -> pa.Table:
    """Rows of a base as its file of format 1 has them: no key was null, and the Parquet columns say so."""
    keys = set(table.key_schema.names)
    return rows.cast(
        pa.schema([field.with_nullable(field.nullable and field.name not in keys) for field in rows.schema])
    )


def merged(store: SnapshotStore, table: StateTable, chain: Chain, first_group: int, last_group: int) -> pa.Table:
    """The rows of a range of key groups at ``chain.at``: columns of :func:`base_schema`, sorted by (key group, key)."""
    deltas = deltas_for(chain, range(first_group, last_group + 1))
    parts = (rows_of_groups(read_delta(store, table, delta), first_group, last_group) for delta in deltas)
    changes = folded(table, parts)
    return applied(table, base_rows(store, table, chain, first_group, last_group), changes)


def base_rows(store: SnapshotStore, table: StateTable, chain: Chain, first_group: int, last_group: int) -> pa.Table:
    """The rows of a range of key groups in the bases of a chain, before its links."""
    overlapping = [base for base in chain.bases if base.first_group <= last_group and base.last_group >= first_group]
    overlapping.sort(key=lambda base: base.first_group)
    parts = [read_base(store, table, base) for base in overlapping]
    rows = pa.concat_tables([base_schema(table).empty_table(), *parts]).combine_chunks()
    return rows_of_groups(rows, first_group, last_group)


def read_base(store: SnapshotStore, table: StateTable, base: BaseFile) -> pa.Table:
    """All rows of a base, checked, with the columns of :func:`base_schema`."""
    of = f"state {table.id!r} at {base.at}"
    return decode_parquet(store, table, store.read_file(base.file, of), base.file, base_schema(table))


def deltas_for(chain: Chain, groups: Iterable[int]) -> Iterator[DeltaFile]:
    """The chain's deltas, oldest first, that can hold some of these key groups."""
    requested = set(groups)
    for link in chain.links:
        for delta in link.deltas:
            if any(group % delta.parallelism == delta.subtask for group in requested):
                yield delta
