"""Merging of bases and deltas of a state table into its rows at a snapshot.

All tables are sorted by (key group, key). No step is per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.snapshots.base_files import base_schema, read_groups
from epochal.snapshots.chain import Chain
from epochal.snapshots.delta import PUT, read_delta, rows_of_groups
from epochal.snapshots.manifest import BaseFile, DeltaFile
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


def merged(store: SnapshotStore, table: StateTable, chain: Chain, groups: range) -> pa.Table:
    """Rows of some key groups at ``chain.at``: columns of :func:`base_schema`, sorted by (key group, key)."""
    of_runs = rows_by_age(store, table, runs_for(chain.bases, groups), groups)
    rows = puts_of(table, next(of_runs, table.delta_schema.empty_table()))
    changes = folded(table, (*of_runs, *changes_within(store, table, chain, groups)))
    return after_changes(table, rows, changes, chain.clock)


def after_changes(table: StateTable, rows: pa.Table, changes: pa.Table, clock: StateClock | None) -> pa.Table:
    """``rows`` after ``changes``, without expired ones. ``clock``: clock of the snapshot."""
    # Removing expired rows first saves merging them with the changes; the result is the same.
    return without_expired(table, applied(table, without_expired(table, rows, clock), changes), clock)


def changes_within(store: SnapshotStore, table: StateTable, chain: Chain, groups: range) -> Iterator[pa.Table]:
    """Changes to some key groups from each delta of a chain, oldest first."""
    for delta in deltas_for(chain, groups):
        yield rows_of_groups(read_delta(store, table, delta, (groups.start, groups[-1])), groups)


def runs_for(bases: Iterable[BaseFile], groups: range) -> list[BaseFile]:
    """Runs that can have rows of some of these key groups, in their order."""
    requested = set(groups)
    return [base for base in bases if not requested.isdisjoint(base.groups)]


def rows_by_age(store: SnapshotStore, table: StateTable, runs: Sequence[BaseFile], groups: range) -> Iterator[pa.Table]:
    """Rows of some key groups in ``runs``, which are sorted by age: one table for each age, with the columns of a
    delta, sorted by (key group, key)."""
    requested = np.array(groups, np.int32)
    for _, alike in groupby(runs, key=lambda run: run.age):
        parts = [read_groups(store, table, run, requested) for run in alike]
        yield by_group(pa.concat_tables([_with_operations(table, part) for part in parts]))


def puts_of(table: StateTable, changes: pa.Table) -> pa.Table:
    """Rows after ``changes`` to an empty table: the columns of :func:`base_schema`."""
    return changes.filter(pc.equal(changes.column("_op"), PUT)).select(base_schema(table).names)


def _with_operations(table: StateTable, rows: pa.Table) -> pa.Table:
    if "_op" not in rows.column_names:
        rows = rows.append_column(table.delta_schema.field("_op"), pa.repeat(PUT, rows.num_rows))
    return rows.select(table.delta_schema.names)


def by_group(rows: pa.Table) -> pa.Table:
    """Rows sorted by (key group, key), in one chunk. ``rows``: those of several runs of one age, each in this order,
    without common key groups."""
    groups = rows.column("_kg").to_numpy()
    if len(groups) < 2 or (groups[1:] >= groups[:-1]).all():
        return rows.combine_chunks()
    return rows.take(pa.array(np.argsort(groups, kind="stable"))).combine_chunks()


def deltas_for(chain: Chain, groups: Iterable[int]) -> Iterator[DeltaFile]:
    """Deltas of the chain that can contain some of these key groups, oldest first."""
    requested = set(groups)
    for link in chain.links:
        for delta in link.deltas:
            if any(group % delta.parallelism == delta.subtask for group in requested):
                yield delta
