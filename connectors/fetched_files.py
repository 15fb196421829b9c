"""Files that the driver lists and Python tasks fetch, where Spark does not read them by path: HDFS and object stores.

A connector implements :class:`FetchedFiles`; :mod:`epochal.connectors.fetched_source` is the source and the table over
it. Tasks split JSON and CSV files into lines and Spark parses the lines with Spark's options, so records have the same
meaning as in files that Spark reads.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from epochal.connectors.file_listing import FileRecord


class FetchedFiles(ABC):
    """Access to the files of one source or table. Serialisable: each process opens its own connection.

    All methods raise the server's errors; callers convert them with :meth:`translated`.
    """

    subject: str
    """The source in messages, such as ``Source files:s3://bucket/in``."""
    location: str
    """The file, folder or pattern, as records name it."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The registered name of the source."""

    @abstractmethod
    def list_all(self, recursive: bool) -> list[FileRecord]:
        """All files at the location, oldest first, as :func:`epochal.connectors.file_listing.list_files`."""

    def list_new(self, recursive: bool, is_taken: Callable[[str], bool]) -> list[FileRecord]:
        """:meth:`list_all`; taken files may be left out where a listing can begin after a name."""
        return self.list_all(recursive)

    @abstractmethod
    def current(self, records: Sequence[FileRecord]) -> dict[str, FileRecord]:
        """The current records of the existing files among ``records``, by path; other files can be included."""

    def check(self, records: Sequence[FileRecord]) -> dict[str, FileRecord]:
        """:meth:`current`, in the driver before tasks read the files. Where tasks detect missing and changed files by
        themselves, a connector returns ``records``."""
        return self.current(records)

    @abstractmethod
    def read(self, record: FileRecord, offset: int, length: int) -> bytes:
        """The bytes of a range; fewer if the file ends earlier."""

    @abstractmethod
    def pieces(self, record: FileRecord, size: int) -> Iterator[bytes]:
        """The content from its beginning in pieces of at most ``size`` bytes. Callers may stop early."""

    @abstractmethod
    def check_unchanged(self, record: FileRecord) -> None:
        """Called in a task that has read a file. Raises ``SourceChanged`` if the file was replaced meanwhile."""

    @abstractmethod
    def translated(self, what: str, subject: str | None = None) -> AbstractContextManager[None]:
        """Convert the server's errors in the block into ``SourceError``; ``SourceUnavailable`` if it does not answer.

        ``what``: the action, such as ``be listed``. ``subject``: what could not; default: the source.
        """


class FetchedFile(io.RawIOBase):
    """A seekable file. Each read is a separate request."""

    def __init__(self, files: FetchedFiles, record: FileRecord) -> None:
        super().__init__()
        self._files = files
        self._record = record
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._record.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._record.size - self._position)
        length = left if size < 0 else min(size, left)
        data = self._files.read(self._record, self._position, length) if length else b""
        self._position += len(data)
        return data
