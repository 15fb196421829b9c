"""Source that follows a growing folder, and table, of files that tasks fetch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.connectors.dropped_records import DroppedRecords
from epochal.connectors.fetched_files import FetchedFiles
from epochal.connectors.fetched_frames import frame_of, headers_of
from epochal.connectors.fetched_parquet import parquet_rows, parquet_schema
from epochal.connectors.file_listing import FileRecord, check_not_elsewhere
from epochal.connectors.file_reading import Reader, declared_schema, estimated_rows
from epochal.connectors.file_slices import TakenFiles, Taking, changed, first_within, records_of
from epochal.contracts.source import Backlog, Slice, SliceLimits, Source
from epochal.errors import EpochalError, SchemaError, SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SAMPLE = 64 * 1024


class FetchedSource(Source):
    """Source of fetched files. A slice lists files with size and modification time; a position is the number of files
    taken."""

    def __init__(self, files: FetchedFiles, reader: Reader, taking: Taking) -> None:
        self._files = files
        self._reader = reader
        self._taking = taking
        self._taken = TakenFiles(taking.missing)
        self._schema: StructType | None = None
        self._dropped = DroppedRecords(files.location)
        self._headers = headers_of(files, reader)

    @property
    def kind(self) -> str:
        return self._files.kind

    @property
    def bounded(self) -> bool:
        return self._taking.bounded

    @property
    def ended(self) -> bool:
        return self._taken.ended

    @property
    def punctuated(self) -> bool:
        return self._taking.punctuation is not None

    def schema(self, spark: SparkSession) -> StructType:
        if self._schema is None:
            self._schema = _schema(self._files, self._reader)
        return self._schema

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._taken.restore(checkpoint, slices)

    def checkpoint(self) -> dict[str, Any]:
        return self._taken.checkpoint()

    def limit_to_available(self) -> None:
        with self._files.translated("be listed"):
            self._taken.limit_to(self._list())

    def plan(self, limits: SliceLimits) -> Slice | None:
        with self._files.translated("be listed"):
            taking = self._taking
            new = self._taken.new_among(self._list())[: taking.max_files]
            rows = None
            if taking.punctuation is not None:
                new = self._taken.up_to_punctuation(new, taking.punctuation, taking.bounded)
            elif limits.max_records is not None:
                new, estimated = first_within(limits.max_records, new, self._rows)
                rows = estimated if self._reader.format == "parquet" else None
        return self._taken.next_slice(new, rows, self.punctuated)

    def _list(self) -> list[FileRecord]:
        if self._taken.begun:
            return self._files.list_new(self._reader.recursive, self._taken.has_taken)
        return list_first(self._files, self._reader.recursive)

    def accept(self, slice: Slice) -> None:
        self._taken.accept(slice)

    def backlog(self) -> Backlog:
        return Backlog(files=self._taken.left, skipped=self._taken.skipped)

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        records = records_of(slice)
        with self._files.translated("be read"):
            there = self._files.check(records)
        missing = [record for record in records if record.path not in there]
        for record in records:
            if there.get(record.path, record) != record:
                raise changed(record, there[record.path])
        if missing:
            raise self._taken.missing(missing)
        counted = self._reader.malformed == "drop" and self._reader.format != "parquet"
        dropped = self._dropped.of(slice) if counted else None
        return frame_of(self._files, self._reader, spark, self.schema(spark), records, dropped, self._headers)

    def unreadable(self, slice: Slice) -> EpochalError | None:
        records = records_of(slice)
        with self._files.translated("be read"):
            there = self._files.current(records)
        missing = [record for record in records if record.path not in there]
        return self._taken.missing(missing) if missing else None

    def acknowledge(self, slice: Slice) -> None:
        self._dropped.log(slice)

    def _rows(self, record: FileRecord) -> int:
        if self._reader.format == "parquet":
            return parquet_rows(self._files, record)
        return estimated_rows(record.path, record.size, self._files.read(record, 0, _SAMPLE))


def read_table(files: FetchedFiles, reader: Reader, spark: SparkSession) -> DataFrame:
    """Read all records of the existing files."""
    schema = _schema(files, reader)
    with files.translated("be listed"):
        records = list_first(files, reader.recursive)
    return frame_of(files, reader, spark, schema, records, None, headers_of(files, reader))


def list_first(files: FetchedFiles, recursive: bool) -> list[FileRecord]:
    """The first listing of a reader. Raises ``SourceError`` if only subfolders that are not read have data."""
    return check_not_elsewhere(files.location, files.list_all(recursive), recursive, partial(files.list_all, True))


def _schema(files: FetchedFiles, reader: Reader) -> StructType:
    """The declared schema, or the schema of the newest Parquet file. Raises ``SchemaError`` and ``SourceError``."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    if reader.schema is not None:
        return declared_schema(files.location, reader.schema)
    with files.translated("be read"):
        records = list_first(files, reader.recursive)
        if not records:
            raise SourceError(
                f"There is no file at {files.location} to infer the columns from. Add one, or set schema='column type, "
                "..'."
            )
        there = parquet_schema(files, records[-1])
    try:
        found = from_arrow_schema(there.remove_metadata())
    except PySparkException as error:
        raise SchemaError(
            f"The columns of {records[-1].path} cannot be inferred: {error}. Declare a schema of the columns to read."
        ) from error
    return StructType([StructField(field.name, field.dataType, nullable=True) for field in found.fields])
