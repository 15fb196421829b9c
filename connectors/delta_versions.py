"""Versions of a Delta table as a source: the files that each version of its log adds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from epochal.backends.delta_lake.address import DeltaAddress, as_text
from epochal.backends.tables.folder import first_line
from epochal.connectors.fetched_files import FetchedFiles
from epochal.connectors.fetched_frames import files_of, reported
from epochal.connectors.fetched_parquet import parquet_batches
from epochal.connectors.file_listing import FileRecord
from epochal.connectors.table_source import TableVersions, Version, VersionFile, frame_of
from epochal.errors import EpochalError, SchemaError, SourceChanged, SourceError, SourceUnavailable
from epochal.tasks.arrow_tasks import prepare_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_LOG: Final = "_delta_log"
_UNREADABLE: Final = ("deletionVectors", "columnMapping", "typeWidening", "typeWidening-preview")
"""Features by which a file does not have the rows and columns of the table."""


@dataclass(frozen=True)
class DeltaFiles(FetchedFiles):
    """Data files of the table, for tasks. Paths are relative to the table's folder, or URLs."""

    address: DeltaAddress

    @property
    def subject(self) -> str:  # type: ignore[override]
        return f"Source {self.address.target}"

    @property
    def location(self) -> str:  # type: ignore[override]
        return self.address.url

    @property
    def kind(self) -> str:
        return "delta"

    def list_all(self, recursive: bool) -> list[FileRecord]:
        raise NotImplementedError("the log of the table names its files")

    def current(self, records: Sequence[FileRecord]) -> dict[str, FileRecord]:
        return {record.path: record for record in records}

    def read(self, record: FileRecord, offset: int, length: int) -> bytes:
        try:
            return self.read_bytes(record.path, offset, length)
        except FileNotFoundError as error:
            raise SourceChanged(
                f"{self.subject}: the file {record.path} was deleted before an epoch has read it, such as by VACUUM. "
                "Restore it; or start a new application, which reads the rows of the present version."
            ) from error

    def pieces(self, record: FileRecord, size: int) -> Iterator[bytes]:
        for offset in range(0, record.size, size):
            yield self.read(record, offset, size)

    def check_unchanged(self, record: FileRecord) -> None:
        """Nothing: data files are never changed."""

    def translated(self, what: str, subject: str | None = None) -> AbstractContextManager[None]:
        return _translated(subject or self.subject, what)

    def read_bytes(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """A range of a file; up to its end without ``length``. Raises ``OSError``."""
        # Not with the library's file system, whose requests stop all threads of the process until they are answered.
        place = self.address.place
        if place is None:
            with (Path(self.address.url) / path).open("rb") as file:
                file.seek(offset)
                return file.read(-1 if length is None else length)
        store, key = place.address.connect(), f"{place.path}/{path}" if place.path else path
        return store.read(key) if length is None else store.read_version(key, "", offset, length)


class DeltaVersions(TableVersions):
    """Versions of the table. Each version's entry of the log is read once."""

    kind = "delta"

    def __init__(self, address: DeltaAddress) -> None:
        self._address = address
        self._data = DeltaFiles(address)
        self._subject = f"Source {address.target}"
        self._table: DeltaTable | None = None

    def latest(self) -> int | None:
        return self._opened().version()

    def whole(self, version: int) -> Version:
        with _translated(self._subject, f"read version {version}"):
            try:
                table = DeltaTable(self._address.url, version=version, storage_options=self._address.storage_options())
            except TableNotFoundError:
                raise
            except DeltaError as error:
                raise self._expired(version) from error
            self._check_readable(table)
            actions = pa.table(table.get_add_actions(flatten=False)).to_pylist()
        files = [
            _file(unquote(each["path"]), each["size_bytes"], each.get("num_records"), _texts(each.get("partition")))
            for each in actions
        ]
        return Version(version, tuple(sorted(files, key=lambda file: file.path)))

    def added_by(self, version: int) -> Version:
        entry = self._entry(version)
        if entry is None:
            raise self._expired(version)
        return self._version(version, entry)

    def after(self, version: int) -> Iterator[Version]:
        latest = self._opened().version()
        for number in range(version + 1, latest + 1):
            yield self.added_by(number)

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructField, StructType

        table = self._opened()
        with _translated(self._subject, "read the columns"):
            self._check_readable(table)
            columns = from_arrow_schema(pa.schema(table.schema()))
        return StructType([StructField(field.name, field.dataType, nullable=True) for field in columns.fields])

    def frame(self, spark: SparkSession, schema: StructType, files: Sequence[VersionFile]) -> DataFrame:
        return frame_of(spark, schema, files, lambda tasks, columns: ReadDelta(self._data, tasks, columns))

    def _opened(self) -> DeltaTable:
        """The table at its latest version."""
        with _translated(self._subject, "read the table"):
            try:
                if self._table is None:
                    self._table = DeltaTable(self._address.url, storage_options=self._address.storage_options())
                else:
                    self._table.update_incremental()
            except TableNotFoundError as error:
                self._table = None
                raise SourceError(
                    f"{self._subject}: there is no table. Create it, or correct the path; the source is read then."
                ) from error
            except Exception:
                self._table = None
                raise
        return self._table

    def _entry(self, version: int) -> list[dict[str, Any]] | None:
        """The actions of a version; ``None`` if its entry does not exist any more."""
        with _translated(self._subject, f"read version {version}"):
            try:
                lines = self._data.read_bytes(f"{_LOG}/{version:020}.json").splitlines()
                return [json.loads(line) for line in lines if line.strip()]
            except FileNotFoundError:
                return None

    def _version(self, version: int, actions: Sequence[Mapping[str, Any]]) -> Version:
        added = []
        for action in actions:
            if (removed := action.get("remove")) is not None and removed.get("dataChange", True):
                raise SourceError(
                    f"{self._subject}: version {version} ({_operation(actions)}) removes rows, which are in the "
                    "results already. To continue with the rows of later versions only, start a new application with "
                    f"start={version}, which reads the whole version; or let writers append only."
                )
            if (protocol := action.get("protocol")) is not None:
                self._check_features(protocol.get("readerFeatures") or (), version)
            if (metadata := action.get("metaData")) is not None:
                self._check_columns(json.loads(metadata["schemaString"]), version)
            file = action.get("add")
            if file is None or not file.get("dataChange", True):
                continue
            if file.get("deletionVector"):
                raise self._deletion_vector(version)
            rows = json.loads(file["stats"]).get("numRecords") if file.get("stats") else None
            added.append(_file(unquote(file["path"]), file["size"], rows, file.get("partitionValues") or {}))
        return Version(version, tuple(sorted(added, key=lambda file: file.path)))

    def _check_readable(self, table: DeltaTable) -> None:
        self._check_features(table.protocol().reader_features or (), table.version())
        if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            self._check_features(["columnMapping"], table.version())

    def _check_features(self, features: Sequence[str], version: int) -> None:
        for name in features:
            if name in _UNREADABLE:
                raise SourceError(
                    f"{self._subject}: version {version} has the feature {name}, with which a file does not have the "
                    "rows or columns of the table. Read a copy of the table without it."
                )

    def _deletion_vector(self, version: int) -> SourceError:
        return SourceError(
            f"{self._subject}: version {version} adds a file with a deletion vector. Read a copy of the table without "
            "them (delta.enableDeletionVectors=false)."
        )

    def _check_columns(self, schema: Mapping[str, Any], version: int) -> None:
        """Raises ``SchemaError`` if a column of the table at the start of the attempt was dropped or retyped."""
        table = self._table
        if table is None:
            return
        now = {field["name"]: field["type"] for field in schema["fields"]}
        for field in json.loads(table.schema().to_json())["fields"]:
            if field["name"] in now and now[field["name"]] != field["type"]:
                raise SchemaError(
                    f"{self._subject}: version {version} changes the type of column {field['name']!r} from "
                    f"{json.dumps(field['type'])} to {json.dumps(now[field['name']])}. Start a new application, which "
                    "reads the table with its present columns."
                )

    def _expired(self, version: int) -> SourceError:
        return SourceError(
            f"{self._subject}: version {version} does not exist any more: the log was cleaned up before it was read. "
            "Start a new application, which reads the rows of the present version; and keep the log longer than the "
            "application may be stopped (delta.logRetentionDuration)."
        )


@dataclass(frozen=True)
class ReadDelta:
    """Task that reads the rows of its files with the columns of ``schema``; the log has the partition columns."""

    files: DeltaFiles
    tasks: Sequence[Sequence[VersionFile]]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with reported():
            for file in files_of(self.tasks, batches):
                with self.files.translated(f"read {file.path}", "Source"):
                    yield from self._rows(file)

    def _rows(self, file: VersionFile) -> Iterator[pa.RecordBatch]:
        partition: Mapping[str, str | None] = file.detail["partition"]
        stored = pa.schema([field for field in self.schema if field.name not in partition])
        record = FileRecord(0, file.path, file.size)
        values = {name: _partition_value(self.schema.field(name), text) for name, text in partition.items()}
        for batch in parquet_batches(self.files, record, stored):
            columns = [
                pa.repeat(values[field.name], batch.num_rows) if field.name in values else batch.column(field.name)
                for field in self.schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _file(path: str, size: int, rows: int | None, partition: Mapping[str, str | None]) -> VersionFile:
    return VersionFile(path, rows, {"size": size, "partition": dict(partition)})


def _texts(values: Mapping[str, Any] | None) -> dict[str, str | None]:
    """Partition values as the log has them."""
    return {name: None if value is None else as_text(value) for name, value in (values or {}).items()}


def _partition_value(field: pa.Field, text: str | None) -> pa.Scalar:
    if text is None or text == "":
        return pa.scalar(None, field.type)
    return pa.scalar(text).cast(field.type)


def _operation(actions: Sequence[Mapping[str, Any]]) -> str:
    found = (action["commitInfo"].get("operation") for action in actions if "commitInfo" in action)
    return str(next(found, None) or "unknown operation")


@contextmanager
def _translated(subject: str, what: str) -> Iterator[None]:
    try:
        yield
    except EpochalError:
        raise
    except (DeltaError, OSError) as error:
        raise SourceUnavailable(
            f"{subject} could not {what}: {first_line(error)}. Check that the store can be reached, and the "
            "credentials."
        ) from error
