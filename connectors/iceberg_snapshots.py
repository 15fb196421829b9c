"""Snapshots of an Iceberg table as a source: the files that each snapshot of ``main`` adds.

A version is the sequence number of a snapshot. The operation of every snapshot is read: the library's incremental scan
skips those that remove rows without an error, so it is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import requests
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as LibraryTable
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from sqlalchemy.exc import SQLAlchemyError

from epochal.backends.iceberg.address import IcebergAddress
from epochal.backends.iceberg.data_file import decoded, placed
from epochal.backends.iceberg.transaction import TaskTable
from epochal.backends.tables.folder import first_line
from epochal.connectors.fetched_frames import files_of, reported
from epochal.connectors.table_source import TableVersions, Version, VersionFile, frame_of
from epochal.errors import EpochalError, SchemaError, SourceChanged, SourceError, SourceUnavailable
from epochal.tasks.arrow_tasks import prepare_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class IcebergSnapshots(TableVersions):
    """Snapshots of the branch ``main``."""

    kind = "iceberg"

    def __init__(self, address: IcebergAddress) -> None:
        self._address = address
        self._subject = f"Source {address.target}"
        self._read_with: Schema | None = None
        """Columns of the table when they were first read: those of the attempt."""

    def latest(self) -> int | None:
        snapshot = self._opened().current_snapshot()
        return None if snapshot is None else _number(snapshot)

    def whole(self, version: int) -> Version:
        table = self._opened()
        snapshot = next((each for each in _history(table) if _number(each) == version), None)
        if snapshot is None:
            raise self._expired(version)
        with _translated(self._subject, f"read snapshot {snapshot.snapshot_id}"):
            found = []
            for manifest in snapshot.manifests(table.io):
                if manifest.content == ManifestContent.DELETES:
                    raise self._deletes(snapshot)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                found += [self._file(table, entry.data_file) for entry in entries]
        return Version(version, tuple(sorted(found, key=lambda file: file.path)))

    def added_by(self, version: int) -> Version:
        table = self._opened()
        snapshot = next((each for each in _history(table) if _number(each) == version), None)
        if snapshot is None:
            raise self._expired(version)
        return self._version(table, snapshot)

    def after(self, version: int) -> Iterator[Version]:
        table = self._opened()
        snapshots: list[Snapshot] = []
        for snapshot in _history(table):
            if _number(snapshot) == version:
                break
            snapshots.append(snapshot)
        else:
            if version or (snapshots and snapshots[-1].parent_snapshot_id is not None):
                raise self._expired(version)
        for snapshot in reversed(snapshots):
            yield self._version(table, snapshot)

    def schema(self) -> StructType:
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructField, StructType

        table = self._opened()
        try:
            columns = from_arrow_schema(schema_to_pyarrow(table.schema(), include_field_ids=False))
        except PySparkException as error:
            raise SchemaError(
                f"{self._subject} has a column that Spark cannot read: {error}. Read a copy of the table without it."
            ) from error
        self._read_with = table.schema()
        return StructType([StructField(field.name, field.dataType, nullable=True) for field in columns.fields])

    def frame(self, spark: SparkSession, schema: StructType, files: Sequence[VersionFile]) -> DataFrame:
        table = self._opened()
        projected = (self._read_with or table.schema()).model_dump_json()

        def task(tasks: Sequence[Sequence[VersionFile]], columns: pa.Schema) -> ReadIceberg:
            # Snapshots may have been written with earlier columns: the library finds columns by their ids.
            shape = TaskTable.of(self._subject, table.metadata, columns, "", self._address.catalog, table.io.properties)
            return ReadIceberg(self._subject, shape, projected, tasks)

        return frame_of(spark, schema, files, task)

    def _opened(self) -> LibraryTable:
        with _translated(self._subject, "read the table"):
            try:
                table = self._address.catalog.connect().load_table(self._address.table)
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                raise SourceError(
                    f"{self._subject}: there is no table. Create it, or correct its name; the source is read then."
                ) from error
        if table.metadata.format_version != 2:
            raise SourceError(
                f"{self._subject} has format version {table.metadata.format_version}; only snapshots of version 2 have "
                "an order that can be followed and that the library reads. Upgrade or copy the table."
            )
        return table

    def _version(self, table: LibraryTable, snapshot: Snapshot) -> Version:
        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation == Operation.REPLACE:
            return Version(_number(snapshot), ())
        if operation != Operation.APPEND:
            named = "unknown operation" if operation is None else operation.value
            raise SourceError(
                f"{self._subject}: snapshot {snapshot.snapshot_id} ({named}) "
                "removes rows, which are in the results already. To continue with the rows of later snapshots only, "
                f"start a new application with start={_number(snapshot)}, which reads the whole snapshot; or let "
                "writers append only."
            )
        with _translated(self._subject, f"read snapshot {snapshot.snapshot_id}"):
            found = []
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id != snapshot.snapshot_id:
                    continue
                if manifest.content == ManifestContent.DELETES:
                    raise self._deletes(snapshot)
                found += [
                    self._file(table, entry.data_file)
                    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    if entry.status == ManifestEntryStatus.ADDED
                ]
        return Version(_number(snapshot), tuple(sorted(found, key=lambda file: file.path)))

    def _file(self, table: LibraryTable, file: DataFile) -> VersionFile:
        detail = placed(file, table.specs()[file.spec_id], table.schema())
        return VersionFile(file.file_path, file.record_count, {k: v for k, v in detail.items() if k not in _NAMES})

    def _deletes(self, snapshot: Snapshot) -> SourceError:
        return SourceError(
            f"{self._subject}: snapshot {snapshot.snapshot_id} has files of deleted rows. Rewrite the data files "
            "(rewrite_data_files), and start again; or read a copy."
        )

    def _expired(self, version: int) -> SourceError:
        return SourceError(
            f"{self._subject}: the snapshot with sequence number {version} is not in the history of main any more: it "
            "has expired before it was read, or the table was rolled back. Start a new application, which reads the "
            "rows of the present snapshot; and keep snapshots longer than the application may be stopped."
        )


_NAMES = ("path", "rows")


@dataclass(frozen=True)
class ReadIceberg:
    """Task that reads the rows of its files with the library. ``projected``: the columns of the table, as JSON."""

    subject: str
    table: TaskTable
    projected: str
    tasks: Sequence[Sequence[VersionFile]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        metadata = TableMetadataUtil.parse_raw(self.table.metadata)
        projected = Schema.model_validate_json(self.projected)
        with reported():
            for file in files_of(self.tasks, batches):
                with _translated(self.subject, f"read {file.path}"):
                    entry: dict[str, Any] = {"path": file.path, "rows": file.rows, **file.detail}
                    task = FileScanTask(decoded(entry, metadata, metadata.schema()))
                    scan = ArrowScan(metadata, self.table.io(), projected, AlwaysTrue())
                    for batch in scan.to_record_batches([task]):
                        yield batch.select(self.table.schema.names).cast(self.table.schema)


def _history(table: LibraryTable) -> Iterator[Snapshot]:
    """Snapshots of ``main``, latest first, up to the first one that has expired."""
    yield from ancestors_of(table.current_snapshot(), table.metadata)


def _number(snapshot: Snapshot) -> int:
    return int(snapshot.sequence_number or 0)


@contextmanager
def _translated(subject: str, what: str) -> Iterator[None]:
    try:
        yield
    except EpochalError:
        raise
    except FileNotFoundError as error:
        raise SourceChanged(
            f"{subject} could not {what}: the file was deleted before an epoch has read it. Restore it; or start a new "
            "application, which reads the rows of the present snapshot."
        ) from error
    except (RESTError, SQLAlchemyError, OSError, requests.RequestException) as error:
        raise SourceUnavailable(
            f"{subject} could not {what}: {first_line(error)}. Check that the catalog and its files can be reached."
        ) from error
