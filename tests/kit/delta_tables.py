"""A Delta table in a local folder for the sink contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from epochal.backends.delta_lake.address import DeltaAddress
from epochal.backends.delta_lake.sink import DeltaSink
from epochal.contracts.backend import Buffering, SinkPlace
from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import SinkHarness
from epochal.testing.sink_contract import SCHEMA, epoch


class DeltaFolder(SinkHarness):
    """``collects``: the sink has a write-ahead log, in a store beside the table. ``keys``, ``add_columns``: options of
    the sink."""

    def __init__(
        self,
        path: Path,
        partition_by: Sequence[str] = (),
        collects: bool = False,
        keys: Sequence[str] = (),
        add_columns: bool = False,
    ) -> None:
        self.path, self.partition_by = path, partition_by
        self.keys, self.add_columns = keys, add_columns
        self.store = SnapshotStore(str(path.with_name("store"))) if collects else None

    def make(self) -> DeltaSink:
        buffering = None if self.store is None else Buffering(60.0)
        place = SinkPlace("out", self.store)
        address = DeltaAddress(str(self.path))
        return DeltaSink(place, address, self.partition_by, buffering, keys=self.keys, add_columns=self.add_columns)

    def table(self) -> DeltaTable | None:
        return DeltaTable(str(self.path)) if (self.path / "_delta_log").exists() else None

    def visible(self) -> list[dict[str, Any]]:
        table = self.table()
        return [] if table is None else list(table.to_pyarrow_table().to_pylist())

    def leftovers(self) -> list[str]:
        table = self.table()
        named = set() if table is None else {uri.removeprefix("file://") for uri in table.file_uris()}
        files = [path for path in self.path.glob("epochal/**/*.parquet") if "/merged/" not in str(path)]
        logs = [] if self.store is None else self.store.list("")
        return sorted([*(str(path) for path in files if str(path) not in named), *logs])


def started(folder: DeltaFolder, attempt: int = 1, at: int = 0) -> DeltaSink:
    """The sink of a new process, after its recovery at an epoch."""
    sink = folder.make()
    sink.check(SCHEMA)
    sink.recover(epoch(at, attempt))
    return sink


def opened(folder: DeltaFolder) -> DeltaTable:
    """The table, which must exist."""
    table = folder.table()
    assert table is not None
    return table
