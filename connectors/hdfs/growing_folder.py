"""HDFS source, which follows a growing folder, and HDFS table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.backends.hdfs.client import WebHdfs, translated
from epochal.connectors.csv_headers import CsvHeaders
from epochal.connectors.dropped_records import DroppedRecords
from epochal.connectors.file_listing import FileRecord
from epochal.connectors.file_reading import Reader, declared_schema, estimated_rows
from epochal.connectors.file_slices import TakenFiles, Taking, changed, first_within, records_of
from epochal.connectors.hdfs.listing import current, list_files, list_first
from epochal.connectors.hdfs.parquet import parquet_rows, parquet_schema
from epochal.connectors.hdfs.reading import frame_of, header_pieces
from epochal.contracts.source import Backlog, Slice, SliceLimits, Source
from epochal.errors import EpochalError, SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SAMPLE = 64 * 1024
_log = logging.getLogger(__name__)


class NameNodesAway(SourceError):
    """No NameNode responds."""


class HdfsSource(Source):
    """HDFS source. A slice lists files with size and modification time; a position is the number of files taken."""

    def __init__(
        self,
        hdfs: WebHdfs,
        path: str,
        reader: Reader,
        taking: Taking,
    ) -> None:
        self._hdfs = hdfs
        self._path = path
        self._reader = reader
        self._taking = taking
        self._subject = f"Source hdfs:{hdfs.address.authority}{path}"
        self._taken = TakenFiles(taking.missing)
        self._schema: StructType | None = None
        self._dropped = DroppedRecords(path)
        self._headers = _headers(hdfs, reader)
        self._answered: bool | None = None

    @property
    def kind(self) -> str:
        return "hdfs"

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
            self._schema = _schema(self._hdfs, self._subject, self._path, self._reader)
        return self._schema

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._taken.restore(checkpoint, slices)

    def checkpoint(self) -> dict[str, Any]:
        return self._taken.checkpoint()

    def limit_to_available(self) -> None:
        with _translated(self._subject, "be listed"):
            self._taken.limit_to(self._list())

    def plan(self, limits: SliceLimits) -> Slice | None:
        """The next slice; ``None`` while no NameNode responds. Raises ``NameNodesAway`` at the start of an attempt."""
        try:
            slice = self._plan(limits)
        except NameNodesAway as error:
            if self._answered is None:
                raise
            if self._answered:
                _log.warning("%s No new files are read until a NameNode responds.", error.message)
            self._answered = False
            return None
        self._answered = True
        return slice

    def _plan(self, limits: SliceLimits) -> Slice | None:
        with _translated(self._subject, "be listed"):
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
        listed = list_files if self._taken.begun else list_first
        return listed(self._hdfs, self._path, self._reader.recursive)

    def accept(self, slice: Slice) -> None:
        self._taken.accept(slice)

    def backlog(self) -> Backlog:
        return Backlog(files=self._taken.left, skipped=self._taken.skipped, reachable=self._answered is not False)

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        records = records_of(slice)
        with _translated(self._subject, "be read"):
            there = current(self._hdfs, records)
        missing = [record for record in records if record.path not in there]
        for record in records:
            if there.get(record.path, record) != record:
                raise changed(record, there[record.path])
        if missing:
            raise self._taken.missing(missing)
        counted = self._reader.malformed == "drop" and self._reader.format != "parquet"
        dropped = self._dropped.of(slice) if counted else None
        return frame_of(
            self._hdfs, self._reader, spark, self.schema(spark), self._path, records, dropped, self._headers
        )

    def unreadable(self, slice: Slice) -> EpochalError | None:
        records = records_of(slice)
        with _translated(self._subject, "be read"):
            there = current(self._hdfs, records)
        missing = [record for record in records if record.path not in there]
        return self._taken.missing(missing) if missing else None

    def acknowledge(self, slice: Slice) -> None:
        self._dropped.log(slice)

    def _rows(self, record: FileRecord) -> int:
        if self._reader.format == "parquet":
            return parquet_rows(self._hdfs, record)
        return estimated_rows(record.path, record.size, self._hdfs.read(record.path, 0, _SAMPLE))


def read_table(hdfs: WebHdfs, path: str, reader: Reader, spark: SparkSession) -> DataFrame:
    """Read all records of the existing files."""
    subject = f"Table hdfs:{hdfs.address.authority}{path}"
    schema = _schema(hdfs, subject, path, reader)
    with _translated(subject, "be listed"):
        records = list_first(hdfs, path, reader.recursive)
    return frame_of(hdfs, reader, spark, schema, path, records, None, _headers(hdfs, reader))


def _headers(hdfs: WebHdfs, reader: Reader) -> CsvHeaders:
    return CsvHeaders(reader.options, partial(header_pieces, hdfs), is_remote=lambda path: True)


def _translated(subject: str, what: str) -> AbstractContextManager[None]:
    return translated(subject, what, SourceError, NameNodesAway)


def _schema(hdfs: WebHdfs, subject: str, path: str, reader: Reader) -> StructType:
    """The declared schema, or the schema of the newest Parquet file. Raises ``SchemaError`` and ``SourceError``."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    if reader.schema is not None:
        return declared_schema(path, reader.schema)
    with _translated(subject, "be read"):
        files = list_first(hdfs, path, reader.recursive)
        if not files:
            raise SourceError(
                f"There is no file at {path} in HDFS to infer the columns from. Add one, or set schema='column type, "
                "..'."
            )
        found = from_arrow_schema(parquet_schema(hdfs, files[-1]).remove_metadata())
    return StructType([StructField(field.name, field.dataType, nullable=True) for field in found.fields])
