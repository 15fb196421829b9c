"""An Iceberg table of a catalog in SQLite, with files in a local folder, for the sink contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

from epochal.backends.iceberg.address import IcebergAddress
from epochal.backends.iceberg.sink import IcebergSink
from epochal.contracts.backend import Buffering, SinkPlace
from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import SinkHarness

NAME = "sales.orders"


class IcebergCatalog(SinkHarness):
    """``properties``: of the catalog. ``store``: of the sink's write-ahead log, if it collects epochs.
    ``add_columns``: option of the sink."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        name: str = NAME,
        partition_by: Sequence[str] = (),
        store: SnapshotStore | None = None,
        add_columns: bool = False,
    ) -> None:
        self.store, self.add_columns = store, add_columns
        self.address = IcebergAddress.checked("iceberg.sink", name, "default", properties)
        self.partition_by = partition_by
        self.catalog = self.address.catalog.connect()
        self.catalog.create_namespace_if_not_exists(name.rpartition(".")[0])

    def make(self) -> IcebergSink:
        buffering = None if self.store is None else Buffering(60.0)
        place = SinkPlace("out", self.store)
        return IcebergSink(place, self.address, self.partition_by, buffering, self.add_columns)

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


class _Deletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _DeleteRows(_FastAppendFiles):
    """A snapshot that adds a manifest of position deletes, which the library does not write."""

    def __init__(self, table: Table, file: DataFile) -> None:
        super().__init__(Operation.OVERWRITE, table.transaction(), table.io)
        self._file = file

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        output = self.new_manifest_output()
        with _Deletes(metadata.spec(), metadata.schema(), output, self._snapshot_id, "null") as writer:
            added = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=self._file
            )
            writer.add_entry(added)
        return [*manifests, writer.to_manifest_file()]


def add_position_delete(table: Table, file: DataFile, position: int) -> None:
    """Delete a row of an unpartitioned table by a file of deletes, as other engines do."""
    ids = [{b"PARQUET:field_id": number} for number in (b"2147483546", b"2147483545")]
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata=ids[0]),
            pa.field("pos", pa.int64(), nullable=False, metadata=ids[1]),
        ]
    )
    path = Path(table.location().removeprefix("file://")) / "data" / f"deletes-{position}.parquet"
    pq.write_table(pa.table({"file_path": [file.file_path], "pos": [position]}, schema), path)
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
    )
    updates, requirements = _DeleteRows(table, deletes)._commit()
    table.catalog.commit_table(table, requirements, updates)
