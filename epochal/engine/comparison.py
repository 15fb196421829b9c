"""State that a trial made, against the state that is there: by full key, whole columns at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.catalog import ManifestReference
from epochal.snapshots.base import merged
from epochal.snapshots.chain import Chain
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.store import SnapshotStore
from epochal.state.evolution import as_declared
from epochal.state.json_form import to_json
from epochal.state.key_codec import KeyCodec
from epochal.state.table import Column, StateTable

EXAMPLES = 5


@dataclass(frozen=True)
class TableComparison:
    """Keys by what differs. ``rows``: those that are the same in both. ``examples``: key, before, after, as JSON."""

    table: str
    rows: int
    only_before: int
    only_after: int
    different: int
    examples: tuple[dict[str, Any], ...]

    @property
    def same(self) -> bool:
        return not (self.only_before or self.only_after or self.different)


def compare_states(
    store: SnapshotStore, head: ManifestReference, tables: Sequence[StateTable], after: Mapping[str, Chain]
) -> list[TableComparison]:
    """Every state table that both have, compared on the value columns that both have."""
    manifest = store.read_manifest(head)
    there = {table.id: table for table in manifest.tables}
    common = [table for table in tables if table.id in there]
    before = read_chains(store, head, [table.id for table in common])
    last = manifest.max_parallelism - 1
    found = []
    for table in common:
        names = {column.name for column in there[table.id].value}
        columns = [column for column in table.value if column.name in names]
        old = merged(store, there[table.id], before[table.id], 0, last)
        new = merged(store, table, after[table.id], 0, last)
        found.append(_compared(table, columns, old, new))
    return found


def _compared(table: StateTable, columns: Sequence[Column], old: pa.Table, new: pa.Table) -> TableComparison:
    fields = [*table.key_schema, *(column.to_arrow() for column in columns)]
    sides = [_keyed(as_declared(rows, fields, table), table) for rows in (old, new)]
    both = sides[0].join(sides[1], keys="_key", join_type="full outer", left_suffix="_b", right_suffix="_a")
    before, after = both.column("_there_b").is_valid(), both.column("_there_a").is_valid()
    equal = pc.and_(before, after)
    for column in columns:
        equal = pc.and_(equal, _same(both.column(f"{column.name}_b"), both.column(f"{column.name}_a")))
    in_both = pc.and_(before, after)
    differing = both.filter(pc.invert(equal))
    return TableComparison(
        table=table.id,
        rows=_count(equal),
        only_before=_count(pc.and_not(before, after)),
        only_after=_count(pc.and_not(after, before)),
        different=_count(in_both) - _count(equal),
        examples=tuple(_example(row, table, columns) for row in differing.slice(0, EXAMPLES).to_pylist()),
    )


def _keyed(rows: pa.Table, table: StateTable) -> pa.Table:
    keys = KeyCodec(table.key_schema).encode_array(rows)
    return rows.append_column("_key", keys).append_column("_there", pa.repeat(True, rows.num_rows))


def _same(before: pa.ChunkedArray, after: pa.ChunkedArray) -> pa.ChunkedArray:
    """Null is the same as null, and NaN as NaN."""
    same = pc.fill_null(pc.equal(before, after), False)
    if pa.types.is_floating(before.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(before), pc.is_nan(after)), False))
    return pc.or_(same, pc.and_(before.is_null(), after.is_null()))


def _count(mask: pa.ChunkedArray) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _example(row: Mapping[str, Any], table: StateTable, columns: Sequence[Column]) -> dict[str, Any]:
    suffix = "b" if row["_there_b"] else "a"
    key = {column.name: to_json(row[f"{column.name}_{suffix}"], column.type) for column in table.full_key}
    values = {
        side: {column.name: to_json(row[f"{column.name}_{mark}"], column.type) for column in columns}
        if row[f"_there_{mark}"]
        else None
        for side, mark in (("before", "b"), ("after", "a"))
    }
    return {"key": key, **values}
