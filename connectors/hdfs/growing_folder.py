"""HDFS source, which follows a growing folder, and HDFS table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from epochal.backends.hdfs.client import WebHdfs, translated
from epochal.connectors.fetched_files import FetchedFiles, FilesAway
from epochal.connectors.fetched_source import FetchedSource
from epochal.connectors.fetched_source import read_table as read_fetched
from epochal.connectors.file_listing import FileRecord
from epochal.connectors.file_reading import Reader
from epochal.connectors.file_slices import Taking, changed
from epochal.connectors.hdfs.listing import current, list_files, record_of
from epochal.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class HdfsFiles(FetchedFiles):
    """Files of HDFS. ``what``: ``Source`` or ``Table``, for messages."""

    def __init__(self, hdfs: WebHdfs, path: str, what: str = "Source") -> None:
        self.subject = f"{what} hdfs:{hdfs.address.authority}{path}"
        self.location = path
        self._hdfs = hdfs

    @property
    def kind(self) -> str:
        return "hdfs"

    def list_all(self, recursive: bool) -> list[FileRecord]:
        return list_files(self._hdfs, self.location, recursive)

    def current(self, records: Sequence[FileRecord]) -> dict[str, FileRecord]:
        return current(self._hdfs, records)

    def read(self, record: FileRecord, offset: int, length: int) -> bytes:
        return self._hdfs.read(record.path, offset, length)

    def pieces(self, record: FileRecord, size: int) -> Iterator[bytes]:
        return self._hdfs.pieces(record.path, size)

    def check_unchanged(self, record: FileRecord) -> None:
        status = self._hdfs.status(record.path)
        now = record_of(status) if status is not None else None
        if now != record:
            raise changed(record, now)

    def translated(self, what: str, subject: str | None = None) -> AbstractContextManager[None]:
        # A task has no later listing to wait for.
        away = FilesAway if subject is None else SourceError
        return translated(subject or self.subject, what, SourceError, away)


class HdfsSource(FetchedSource):
    """HDFS source."""

    def __init__(self, hdfs: WebHdfs, path: str, reader: Reader, taking: Taking) -> None:
        super().__init__(HdfsFiles(hdfs, path), reader, taking)


def read_table(hdfs: WebHdfs, path: str, reader: Reader, spark: SparkSession) -> DataFrame:
    """Read all records of the existing files."""
    return read_fetched(HdfsFiles(hdfs, path, "Table"), reader, spark)
