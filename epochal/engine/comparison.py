"""State that a trial made, against the state that is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from epochal.contracts.catalog import ManifestReference
from epochal.engine.trial_report import TableComparison
from epochal.snapshots.base import merged
from epochal.snapshots.chain import Chain
from epochal.snapshots.difference import TableDifference, rows_difference
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.store import SnapshotStore
from epochal.state.json_form import to_json
from epochal.state.table import Column, StateTable

EXAMPLES = 5


def compare_states(
    store: SnapshotStore, head: ManifestReference, tables: Sequence[StateTable], after: Mapping[str, Chain]
) -> list[TableComparison]:
    """Every state table that both have, compared on the value columns that both have."""
    manifest = store.read_manifest(head)
    there = {table.id: table for table in manifest.tables}
    common = [table for table in tables if table.durable and table.id in there and there[table.id].durable]
    before = read_chains(store, head, [table.id for table in common])
    last = manifest.max_parallelism - 1
    return [
        _compared(
            rows_difference(
                there[table.id],
                merged(store, there[table.id], before[table.id], 0, last),
                table,
                new := merged(store, table, after[table.id], 0, last),
            ),
            table,
            new.num_rows,
        )
        for table in common
    ]


def _compared(difference: TableDifference, table: StateTable, rows_now: int) -> TableComparison:
    return TableComparison(
        table=table.id,
        rows=rows_now - difference.added - difference.changed,
        only_before=difference.deleted,
        only_after=difference.added,
        different=difference.changed,
        examples=tuple(_examples(difference, table)),
    )


def _examples(difference: TableDifference, table: StateTable) -> Iterator[dict[str, Any]]:
    columns = [column for column in table.value if column.name in difference.compared]
    old, new = (side.slice(0, EXAMPLES).to_pylist() for side in (difference.old, difference.new))
    for before, after, had, has in zip(old, new, difference.had[:EXAMPLES], difference.has[:EXAMPLES], strict=True):
        yield {
            "key": _json(after if has else before, table.address),
            "before": _json(before, columns) if had else None,
            "after": _json(after, columns) if has else None,
        }


def _json(row: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    return {column.name: to_json(row[column.name], column.type) for column in columns}
