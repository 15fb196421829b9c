"""State of the model's applications: a count by key, before and after an upgrade, with its rows and deltas."""

from __future__ import annotations

import pyarrow as pa

from epochal.contracts.identity import EpochKey
from epochal.snapshots.delta import FileWriter, sort_changes, write_delta
from epochal.snapshots.manifest import DeltaFile
from epochal.state.keygroups import key_groups, subtask_of
from epochal.state.table import Column, StateKind, StateTable

GROUPS = 8
COUNTS = StateTable(
    id="counts",
    operator="counts",
    kind=StateKind.VALUE,
    key=(Column(name="key", type="bigint"),),
    value=(Column(name="count", type="int"),),
)
NOTED = COUNTS.model_copy(
    update={"value": (Column(name="count", type="bigint"), Column(name="note", type="int", default=7))}
)
"""The table after an upgrade: a wider type, and a column whose default older rows have."""
Row = dict[str, int | None]
Rows = dict[int, Row]
Changes = dict[int, int | None]
"""The new count of each key; ``None`` deletes the key."""


def rows_after(table: StateTable, before: Rows, changes: Changes) -> Rows:
    """``before`` may have been written by an older declaration than ``table``."""
    rows: Rows = {
        key: {column.name: row.get(column.name, column.default) for column in table.value}
        for key, row in before.items()
        if changes.get(key, 0) is not None
    }
    return rows | {key: _row(table, value) for key, value in changes.items() if value is not None}


def write_changes(
    files: FileWriter, at: EpochKey, table: StateTable, parallelism: int, changes: Changes
) -> tuple[DeltaFile, ...]:
    """Writes one delta for each subtask with changes, as the tasks of an epoch do."""
    numbers = sorted(changes)
    rows = pa.table({"key": pa.array(numbers, pa.int64())})
    groups = key_groups(rows, pa.schema([table.key_schema.field("key")]), GROUPS)
    for column in table.value:
        values = [_row(table, changes[number])[column.name] for number in numbers]
        rows = rows.append_column(column.name, pa.array(values, column.to_arrow().type))
    operations = ["delete" if changes[number] is None else "put" for number in numbers]
    rows = rows.append_column("_kg", pa.array(groups, pa.int32())).append_column("_op", pa.array(operations))
    written = []
    for subtask in range(parallelism):
        own_rows = rows.filter(pa.array(subtask_of(groups, parallelism) == subtask))
        if own_rows.num_rows:
            written.append(write_delta(files, sort_changes(table, own_rows), at, subtask, parallelism))
    return tuple(written)


def _row(table: StateTable, count: int | None) -> Row:
    """The note of every third row is null, which is not the default."""
    values = {"count": count, "note": None if count is None or count % 3 == 0 else count + 100}
    return {column.name: values[column.name] for column in table.value}
