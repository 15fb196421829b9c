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
    rows, changes = rows.combine_chunks(), changes.combine_chunks()
    codec = KeyCodec(table.key_schema)
    keys, changed_keys = codec.encode_array(rows), codec.encode_array(changes)
    puts = pc.equal(changes.column("_op"), PUT).to_numpy()
    change_of = pc.index_in(keys, value_set=changed_keys)
    known = change_of.is_valid().to_numpy(zero_copy_only=False)
    changed = change_of.drop_null().to_numpy()

    source = np.arange(rows.num_rows)
    source[known] = rows.num_rows + changed
    kept = np.ones(rows.num_rows, bool)
    kept[known] = puts[changed]
    added = puts.copy()
    added[changed] = False
    order = np.concatenate([source[kept], rows.num_rows + np.flatnonzero(added)])
    after = pa.concat_tables([rows, changes.select(rows.column_names)]).take(pa.array(order))
    if not added.any():
        return after
    places = pa.table({"group": after.column("_kg"), "key": pa.concat_arrays([keys, changed_keys]).take(order)})
    return after.take(pc.sort_indices(places, sort_keys=[("group", "ascending"), ("key", "ascending")]))


def _last_of_each(table: StateTable, parts: list[pa.Table]) -> pa.Table:
    names = table.delta_schema.names
    rows = pa.concat_tables([part.select(names) for part in parts]).combine_chunks()
    keys = KeyCodec(table.key_schema).encode_array(rows)
    numbered = pa.table({"key": keys, "position": np.arange(len(keys)), "group": rows.column("_kg")})
    last = numbered.group_by("key", use_threads=False).aggregate([("position", "max"), ("group", "max")])
    order = pc.sort_indices(last, sort_keys=[("group_max", "ascending"), ("key", "ascending")])
    return rows.take(last.column("position_max").take(order))
