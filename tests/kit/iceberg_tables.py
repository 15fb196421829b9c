"""An Iceberg table of a catalog in SQLite, with files in a local folder, for the sink contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from epochal.backends.iceberg.address import IcebergAddress
from epochal.backends.iceberg.sink import IcebergSink
from epochal.contracts.backend import Buffering, SinkPlace
from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import SinkHarness

NAME = "sales.orders"


class IcebergCatalog(SinkHarness):
    """``properties``: of the catalog. ``store``: of the sink's write-ahead log, if it collects epochs."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        name: str = NAME,
        partition_by: Sequence[str] = (),
        store: SnapshotStore | None = None,
    ) -> None:
        self.store = store
        self.address = IcebergAddress.checked("iceberg.sink", name, "default", properties)
        self.partition_by = partition_by
        self.catalog = self.address.catalog.connect()
        self.catalog.create_namespace_if_not_exists(name.rpartition(".")[0])

    def make(self) -> IcebergSink:
        buffering = None if self.store is None else Buffering(60.0)
        return IcebergSink(SinkPlace("out", self.store), self.address, self.partition_by, buffering)

    def table(self) -> Table | None:
        try:
            return self.catalog.load_table(self.address.table)
        except NoSuchTableError:
            return None

    def visible(self) -> list[dict[str, Any]]:
        table = self.table()
        return [] if table is None else list(table.scan().to_arrow().to_pylist())

    def leftovers(self) -> list[str]:
        table = self.table()
        if table is None:
            return []
        named = {Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()}
        folder = Path(table.location().removeprefix("file://"))
        files = [path for path in folder.glob("data/epochal/**/*.parquet") if "/merged/" not in str(path)]
        logs = [] if self.store is None else self.store.list("")
        return sorted([*(str(path) for path in files if path not in named), *logs])


def sqlite_catalog(folder: Path, **options: Any) -> IcebergCatalog:
    """A catalog in a file below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    properties = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.sqlite'}", "warehouse": f"file://{folder}"}
    return IcebergCatalog(properties, **options)
