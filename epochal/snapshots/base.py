"""Bases: all rows of a state table at one epoch, in files by range of key groups; :mod:`compaction` makes them.

Columns of ``StateTable.delta_schema`` without ``_op``, sorted by (key group, key); :mod:`base_encoding` says how they
lie in a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from epochal.snapshots.base_encoding import base_schema
from epochal.snapshots.base_reading import read_groups
from epochal.snapshots.chain import Chain
from epochal.snapshots.delta import read_delta, rows_of_groups
from epochal.snapshots.expired import without_expired
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.merging import applied, folded
from epochal.snapshots.store import SnapshotStore
from epochal.state.expiry import StateClock
from epochal.state.table import StateTable


def merged(store: SnapshotStore, table: StateTable, chain: Chain, first_group: int, last_group: int) -> pa.Table:
    """The rows of a range of key groups at ``chain.at``: columns of :func:`base_schema`, sorted by (key group, key)."""
    changes = folded(table, changes_within(store, table, chain, first_group, last_group))
    rows = base_rows(store, table, chain, first_group, last_group)
    return after_changes(table, rows, changes, chain.clock)


def after_changes(table: StateTable, rows: pa.Table, changes: pa.Table, clock: StateClock | None) -> pa.Table:
    """``rows`` after ``changes``, without those that are gone. ``clock``: of the snapshot."""
    # What is gone of the rows need not be sorted again among the changes; what a change puts in its place comes anyway.
    return without_expired(table, applied(table, without_expired(table, rows, clock), changes), clock)


def changes_within(
    store: SnapshotStore, table: StateTable, chain: Chain, first_group: int, last_group: int
) -> Iterator[pa.Table]:
    """What each of a chain's deltas, oldest first, has for a range of key groups."""
    for delta in deltas_for(chain, range(first_group, last_group + 1)):
        yield rows_of_groups(read_delta(store, table, delta, (first_group, last_group)), first_group, last_group)


def base_rows(store: SnapshotStore, table: StateTable, chain: Chain, first_group: int, last_group: int) -> pa.Table:
    """The rows of a range of key groups in the bases of a chain, before its links."""
    overlapping = [base for base in chain.bases if base.first_group <= last_group and base.last_group >= first_group]
    overlapping.sort(key=lambda base: base.first_group)
    groups = np.arange(first_group, last_group + 1, dtype=np.int32)
    parts = [read_groups(store, table, base, groups) for base in overlapping]
    return pa.concat_tables([base_schema(table).empty_table(), *parts]).combine_chunks()


def deltas_for(chain: Chain, groups: Iterable[int]) -> Iterator[DeltaFile]:
    """The chain's deltas, oldest first, that can hold some of these key groups."""
    requested = set(groups)
    for link in chain.links:
        for delta in link.deltas:
            if any(group % delta.parallelism == delta.subtask for group in requested):
                yield delta
