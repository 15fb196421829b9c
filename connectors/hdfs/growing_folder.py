"""HDFS source, which follows a growing folder, and HDFS table; listing of files by path, pattern or folder."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from epochal.backends.hdfs.client import FileStatus, WebHdfs, translated
from epochal.connectors.fetched_files import FetchedFiles
from epochal.connectors.fetched_source import FetchedSource
from epochal.connectors.fetched_source import read_table as read_fetched
from epochal.connectors.file_listing import FileRecord
from epochal.connectors.file_partitions import is_read, is_visible
from epochal.connectors.file_reading import Reader
from epochal.connectors.file_slices import Taking, changed
from epochal.errors import SourceError, SourceUnavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAGIC = frozenset("*?[")


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
        return translated(subject or self.subject, what, SourceError, SourceUnavailable)


class HdfsSource(FetchedSource):
    """HDFS source."""

    def __init__(self, hdfs: WebHdfs, path: str, reader: Reader, taking: Taking) -> None:
        super().__init__(HdfsFiles(hdfs, path), reader, taking)


def read_table(hdfs: WebHdfs, path: str, reader: Reader, spark: SparkSession) -> DataFrame:
    """Read all records of the existing files."""
    return read_fetched(HdfsFiles(hdfs, path, "Table"), reader, spark)


def list_files(hdfs: WebHdfs, location: str, recursive: bool = False) -> list[FileRecord]:
    """List all files at ``location``, oldest first. :mod:`epochal.connectors.file_listing` selects the subfolders.

    An existing path is taken literally. Any other path with ``*``, ``?`` or ``[`` is a pattern, matched folder by
    folder. Names that start with ``_`` or ``.`` are skipped, as in Spark. Raises ``SourceError`` if the folder is
    missing, and the errors of HDFS.
    """
    status = hdfs.status(location)
    if status is None and _MAGIC & set(location):
        found: Iterable[FileStatus] = _matching(hdfs, location, recursive)
    elif status is None:
        raise _missing(location)
    elif not status.is_folder:
        return [record_of(status)]
    else:
        found = hdfs.list(location).values()
    return sorted(map(record_of, _read(hdfs, found, recursive)))


def _read(hdfs: WebHdfs, found: Iterable[FileStatus], recursive: bool) -> Iterator[FileStatus]:
    """The files that a source reads among the entries of a folder and below its subfolders."""
    for status in found:
        name = posixpath.basename(status.path)
        if not status.is_folder and is_visible(name):
            yield status
        elif status.is_folder and is_read(name, recursive):
            yield from _read(hdfs, hdfs.list(status.path).values(), recursive)


def current(hdfs: WebHdfs, records: Iterable[FileRecord]) -> dict[str, FileRecord]:
    """The current records of the existing files, by path. Sends one request per folder."""
    folders = {posixpath.dirname(record.path) for record in records}
    found = (status for folder in sorted(folders) for status in hdfs.list(folder).values())
    return {status.path: record_of(status) for status in found if not status.is_folder}


def record_of(status: FileStatus) -> FileRecord:
    """The slice record of a file."""
    return FileRecord(modified_ns=status.modified_ms * 1_000_000, path=status.path, size=status.length)


def _matching(hdfs: WebHdfs, pattern: str, recursive: bool) -> Iterator[FileStatus]:
    parts = pattern.strip("/").split("/")
    fixed = next(number for number, part in enumerate(parts) if _MAGIC & set(part))
    root = "/" + "/".join(parts[:fixed])
    status = hdfs.status(root)
    if status is None:
        raise _missing(root)
    found = [status]
    for part in parts[fixed:]:
        inside = (item for folder in found if folder.is_folder for item in hdfs.list(folder.path).items())
        shown = ((name, entry) for name, entry in inside if is_visible(name) or is_read(name, recursive))
        found = [entry for name, entry in shown if fnmatchcase(name, part)]
    yield from found


def _missing(path: str) -> SourceError:
    return SourceError(f"There is no file or folder {path} in HDFS. Create it (it may be empty), or correct the path.")
