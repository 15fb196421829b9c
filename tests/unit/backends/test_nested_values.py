"""Sinks of tables, and the Iceberg source: nested values with nulls at every level are unchanged."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from epochal.backends.iceberg.transaction import TaskTable
from epochal.backends.tables.sink import TableSink
from epochal.connectors.iceberg_snapshots import IcebergSnapshots, ReadIceberg
from epochal.contracts.backend import DecidedEpoch
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.snapshots.store import SnapshotStore
from epochal.testing.sink_contract import epoch
from tests.kit.delta_tables import DeltaFolder, opened
from tests.kit.iceberg_tables import IcebergCatalog, sqlite_catalog

LEAVES = (pa.int64(), pa.string())
DEPTH = 3


def drawn_type(chance: random.Random, depth: int = DEPTH) -> pa.DataType:
    """A nested type of at most this depth."""
    kind = (
        chance.choice(("list", "map", "struct")) if depth == DEPTH else chance.choice(("list", "map", "struct", "leaf"))
    )
    if depth == 0 or kind == "leaf":
        return chance.choice(LEAVES)
    inner = drawn_type(chance, depth - 1)
    match kind:
        case "list":
            return pa.list_(inner)
        case "map":
            return pa.map_(pa.string(), inner)
    return pa.struct([("a", inner), ("b", pa.int64())])


def drawn_value(chance: random.Random, type: pa.DataType) -> Any:
    if chance.random() < 0.3:
        return None
    if pa.types.is_map(type):
        return [(f"k{n}", drawn_value(chance, type.item_type)) for n in range(chance.randrange(3))]
    if pa.types.is_list(type):
        return [drawn_value(chance, type.value_type) for _ in range(chance.randrange(3))]
    if pa.types.is_struct(type):
        return {field.name: drawn_value(chance, field.type) for field in type}
    return chance.randrange(9) if pa.types.is_integer(type) else chance.choice(["", "é"])


def drawn_rows(chance: random.Random, number: int = 60) -> pa.Table:
    fixed = [pa.list_(pa.struct([("a", pa.int64())])), pa.map_(pa.string(), pa.struct([("a", pa.int64())]))]
    types = [*fixed, *(drawn_type(chance) for _ in range(4))]
    columns = {
        f"c{place}": pa.array([drawn_value(chance, type) for _ in range(number)], type)
        for place, type in enumerate(types)
    }
    return pa.table({"id": pa.array(range(number), pa.int64()), **columns})


def write(sink: TableSink, rows: pa.Table) -> None:
    """Write the rows as one epoch, in slices of batches."""
    sink.check(rows.schema)
    sink.recover(epoch(0))
    transaction = sink.start(TaskScope(epoch(1), "out", 0))
    for batch in rows.to_batches(max_chunksize=7):
        transaction.write(batch)
    handle = transaction.pre_commit()
    copy = Handle.decode(handle.encode()).model_copy(update={"carried": handle.carried})
    sink.commit_decided([DecidedEpoch(epoch(1), (copy,))])


def in_files(folder: Path) -> list[dict[str, Any]]:
    """Rows of all Parquet files below a folder, read without the library of the table."""
    tables = [pq.ParquetFile(path).read() for path in folder.glob("**/*.parquet") if "_delta_log" not in path.parts]
    return by_id([row for table in tables for row in table.to_pylist()])


def read_by_source(catalog: IcebergCatalog, columns: pa.Schema) -> list[dict[str, Any]]:
    """Rows of the latest snapshot, as a task of the source reads them."""
    snapshots, table = IcebergSnapshots(catalog.address), catalog.table()
    latest = snapshots.latest()
    assert latest is not None
    assert table is not None
    shape = TaskTable.of("source", table.metadata, columns, "", catalog.address.catalog, table.io.properties)
    task = ReadIceberg("source", shape, table.schema().model_dump_json(), [snapshots.whole(latest).files])
    return [row for batch in task(iter([pa.record_batch({"task": [0]})])) for row in batch.to_pylist()]


def by_id(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["id"]))


@pytest.mark.parametrize("collects", [False, True])
@pytest.mark.parametrize("turn", range(3))
def test_nested_values_of_an_iceberg_table(tmp_path: Path, run_seed: int, turn: int, collects: bool) -> None:
    rows = drawn_rows(random.Random(run_seed + turn))
    store = SnapshotStore(str(tmp_path / "store")) if collects else None
    catalog = sqlite_catalog(tmp_path / "tables", store=store)
    write(catalog.make(), rows)
    assert in_files(tmp_path / "tables") == rows.to_pylist()
    assert by_id(catalog.visible()) == rows.to_pylist()
    assert by_id(read_by_source(catalog, rows.schema)) == rows.to_pylist()


@pytest.mark.parametrize("collects", [False, True])
@pytest.mark.parametrize("turn", range(3))
def test_nested_values_of_a_delta_table(tmp_path: Path, run_seed: int, turn: int, collects: bool) -> None:
    rows = drawn_rows(random.Random(run_seed + turn))
    folder = DeltaFolder(tmp_path / "orders", collects=collects)
    write(folder.make(), rows)
    assert in_files(tmp_path / "orders") == rows.to_pylist()
    assert by_id(opened(folder).to_pyarrow_table().to_pylist()) == rows.to_pylist()
