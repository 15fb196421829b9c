"""Rows of a state table and changes to them, column by column: what is left of many deltas, and of a base after them.

Everything is sorted by (key group, key). No step is per row.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.snapshots.delta import PUT
from epochal.state.key_codec import KeyCodec
from epochal.state.key_order import last_of_each, places_among
from epochal.state.table import StateTable

_MERGED_AT_ONCE = 1 << 20
"""Rows of deltas that are gathered before they are folded: memory is bounded by these and what is left of them."""


def folded(table: StateTable, parts: Iterable[pa.Table]) -> pa.Table:
    """The last change of each key, deletes too. ``parts``: columns of ``table.delta_schema``, oldest first."""
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
