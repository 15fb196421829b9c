"""Merging of bases and deltas of a state table into its rows at a snapshot.

All tables are sorted by (key group, key). No step is per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.snapshots.base_files import base_schema, read_groups
from epochal.snapshots.chain import Chain
from epochal.snapshots.delta import PUT, read_delta, rows_of_groups
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.store import SnapshotStore
from epochal.state.column_bytes import Mask
from epochal.state.expiry import StateClock, gone
from epochal.state.key_codec import KeyCodec
from epochal.state.key_order import last_of_each, places_among
from epochal.state.table import StateTable

_MERGED_AT_ONCE = 1 << 20
"""Number of delta rows that are gathered before they are folded. Memory is bounded by these and the folded rows."""


def folded(table: StateTable, parts: Iterable[pa.Table]) -> pa.Table:
    """The last change of each key, including deletes. ``parts``: columns of ``table.delta_schema``, oldest first."""
    gathered: list[pa.Table] = []
    for part in parts:
        gathered.append(part)
        if len(gathered) > 1 and sum(changes.num_rows for changes in gathered) >= _MERGED_AT_ONCE:
            gathered = [_last_of_each(table, gathered)]
    if len(gathered) == 1:
        return gathered[0]
    return _last_of_each(table, gathered) if gathered else table.delta_schema.empty_table()


def applied(table: StateTable, rows: pa.Table, changes: pa.Table) -> pa.Table:
    """``rows`` (without ``_op``) after ``changes``, at most one for each key: the columns of ``rows``."""
    if changes.num_rows == 0:
        return rows
    if rows.num_rows == 0:
        return changes.filter(pc.equal(changes.column("_op"), PUT)).select(rows.column_names).combine_chunks()
    both = pa.concat_tables([rows, changes.select(rows.column_names)]).combine_chunks()
    puts = pc.equal(changes.column("_op"), PUT).to_numpy()
    groups, keys = both.column("_kg").to_numpy(), KeyCodec(table.key_schema).encode_array(both)
    found = places_among(groups, keys, rows.num_rows)
    if found is None:
        stays, last = np.append(np.ones(rows.num_rows, bool), puts), last_of_each(groups, keys)
        return both.take(pa.array(last[stays[last]]))
    places, stand_there = found
    stays = np.ones(rows.num_rows, bool)
    stays[places[stand_there]] = False
    added = np.flatnonzero(puts)
    order = np.insert(np.arange(rows.num_rows), places[added], rows.num_rows + added)
    return both.take(pa.array(order[np.insert(stays, places[added], True)]))


def _last_of_each(table: StateTable, parts: list[pa.Table]) -> pa.Table:
    rows = pa.concat_tables([part.select(table.delta_schema.names) for part in parts]).combine_chunks()
    keys = KeyCodec(table.key_schema).encode_array(rows)
    return rows.take(pa.array(last_of_each(rows.column("_kg").to_numpy(), keys)))


def without_expired(table: StateTable, rows: pa.Table, clock: StateClock | None) -> pa.Table:
    """``rows`` without those that have expired by ``clock``, the clock of the snapshot."""
    if table.horizon(clock) is None:
        return rows
    hidden = expired(table, rows, clock)
    return rows.filter(pa.array(~hidden)) if hidden.any() else rows


def expired(table: StateTable, rows: pa.Table, clock: StateClock | None) -> Mask:
    """Mask of the rows that have expired by ``clock``."""
    horizon = table.horizon(clock)
    if horizon is None or table.expires is None:
        return np.zeros(rows.num_rows, bool)
    return gone(rows.column(table.expires.column), horizon)


def merged(store: SnapshotStore, table: StateTable, chain: Chain, first_group: int, last_group: int) -> pa.Table:
    """Rows of a range of key groups at ``chain.at``: columns of :func:`base_schema`, sorted by (key group, key)."""
    changes = folded(table, changes_within(store, table, chain, first_group, last_group))
    rows = base_rows(store, table, chain, first_group, last_group)
    return after_changes(table, rows, changes, chain.clock)


def after_changes(table: StateTable, rows: pa.Table, changes: pa.Table, clock: StateClock | None) -> pa.Table:
    """``rows`` after ``changes``, without expired ones. ``clock``: clock of the snapshot."""
    # Removing expired rows first saves merging them with the changes; the result is the same.
    return without_expired(table, applied(table, without_expired(table, rows, clock), changes), clock)


def changes_within(
    store: SnapshotStore, table: StateTable, chain: Chain, first_group: int, last_group: int
) -> Iterator[pa.Table]:
    """Changes to a range of key groups from each delta of a chain, oldest first."""
    for delta in deltas_for(chain, range(first_group, last_group + 1)):
        yield rows_of_groups(read_delta(store, table, delta, (first_group, last_group)), first_group, last_group)


def base_rows(store: SnapshotStore, table: StateTable, chain: Chain, first_group: int, last_group: int) -> pa.Table:
    """Rows of a range of key groups in the bases of a chain, without its links."""
    overlapping = [base for base in chain.bases if base.first_group <= last_group and base.last_group >= first_group]
    overlapping.sort(key=lambda base: base.first_group)
    groups = np.arange(first_group, last_group + 1, dtype=np.int32)
    parts = [read_groups(store, table, base, groups) for base in overlapping]
    return pa.concat_tables([base_schema(table).empty_table(), *parts]).combine_chunks()


def deltas_for(chain: Chain, groups: Iterable[int]) -> Iterator[DeltaFile]:
    """Deltas of the chain that can contain some of these key groups, oldest first."""
    requested = set(groups)
    for link in chain.links:
        for delta in link.deltas:
            if any(group % delta.parallelism == delta.subtask for group in requested):
                yield delta
