"""Tables whose columns change between versions of an application, for the tests of both kinds of tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from epochal.backends.tables import added_columns
from epochal.backends.tables.sink import TableSink
from epochal.contracts.backend import DecidedEpoch
from epochal.snapshots.store import SnapshotStore
from epochal.testing.sink_contract import SCHEMA, Row, epoch, start
from tests.kit.delta_tables import DeltaFolder
from tests.kit.iceberg_tables import IcebergCatalog, sqlite_catalog

TABLES = ("delta", "iceberg")
MORE = SCHEMA.append(pa.field("amount", pa.float64()))

Harness = DeltaFolder | IcebergCatalog


class Crash(BaseException):
    """Simulated death of the process."""


def table_of(kind: str, folder: Path, collects: bool = False, **options: Any) -> Harness:
    if kind == "delta":
        return DeltaFolder(folder / "orders", collects=collects, add_columns=True, **options)
    store = SnapshotStore(str(folder / "store")) if collects else None
    return sqlite_catalog(folder / "tables", store=store, add_columns=True, **options)


def begun(harness: Harness, schema: pa.Schema = SCHEMA, attempt: int = 1, at: int = 0) -> TableSink:
    """The sink of a new process whose stream has these columns, after its recovery at an epoch."""
    sink = harness.make()
    sink.check(schema)
    sink.recover(epoch(at, attempt))
    return sink


def staged(sink: TableSink, number: int, rows: Sequence[Row], schema: pa.Schema, previous: int | None) -> DecidedEpoch:
    """A decided epoch with rows of these columns."""
    transaction = start(sink, epoch(number))
    if rows:
        transaction.write(pa.RecordBatch.from_pylist(list(rows), schema))
    return DecidedEpoch(epoch(number), (transaction.pre_commit(),), previous)


def put(sink: TableSink, number: int, rows: Sequence[Row], schema: pa.Schema) -> None:
    sink.commit_decided([staged(sink, number, rows, schema, number - 1 or None)])


def columns(harness: Harness) -> dict[str, tuple[str, bool]]:
    """Columns of the table with their types, and whether they may be null."""
    table = harness.table()
    if isinstance(table, DeltaTable):
        return {field.name: (str(field.type), field.nullable) for field in table.schema().fields}
    assert table is not None
    return {field.name: (str(field.field_type), not field.required) for field in table.schema().fields}


def version(harness: Harness) -> Any:
    """Identity of the latest version, also of one without rows."""
    table = harness.table()
    return table.version() if isinstance(table, DeltaTable) else table and table.metadata_location


def amounts(*pairs: tuple[int, float | None]) -> list[Row]:
    return [{"id": id, "name": str(id), "amount": amount} for id, amount in pairs]


def sorted_rows(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["id"]))


def late_addition(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> added_columns.ColumnAddition:
    """The request of a driver that has died before it was sent."""
    sink, held = harness.make(), []
    sink.check(MORE)

    def hold(subject: str, missing: Callable[[], added_columns.ColumnAddition | None]) -> None:
        held.append(missing())
        raise Crash

    with monkeypatch.context() as patch, suppress(Crash):
        patch.setattr(
            f"epochal.backends.{'delta_lake' if isinstance(harness, DeltaFolder) else 'iceberg'}.sink."
            "add_missing_columns",
            hold,
        )
        sink.recover(epoch(0))
    [addition] = held
    assert addition is not None
    return addition
