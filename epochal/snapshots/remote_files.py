"""Files that are not on a local file system, as :class:`SnapshotStore` requires them.

Two implementations: :mod:`epochal.snapshots.object_store` and, for HDFS and other file systems,
:mod:`epochal.snapshots.fsspec_files`. Each translates the errors of its library into ``OSError``, and is the only
module that depends on them:

=====================  ==============================================================================================
``FileNotFoundError``  the file does not exist
``FileExistsError``    a conditional write: the file exists, or has changed
``PermissionError``    the store refuses the request until credentials, permissions or settings are corrected
``ConnectionError``    the store does not answer, or cannot serve requests now; so do the errors of a network
other ``OSError``      any other error, such as ``ENOSPC``, ``EDQUOT`` and ``EIO``
=====================  ==============================================================================================
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import pyarrow as pa

Data: TypeAlias = "bytes | memoryview | pa.Buffer"


class RemoteFiles(ABC):
    """Files below one URL. Paths are relative to it. All methods raise ``OSError``, as the module says."""

    @abstractmethod
    def write(self, path: str, data: Data) -> None:
        """Write a file atomically; it is durable when this returns."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> None:
        """Write a file unless it exists. Raises ``FileExistsError``, also after an attempt of this call whose answer
        was lost."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """All bytes of a file."""

    @abstractmethod
    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each range (offset, number of bytes); fewer if the file ends earlier."""

    @abstractmethod
    def read_from(self, path: str, offset: int) -> bytes:
        """The bytes of a file from an offset up to its end."""

    @abstractmethod
    def open(self, path: str, size: int) -> Any:
        """A file of ``size`` bytes for reading in parts."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Bytes of a file."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file. Raises ``FileNotFoundError`` if there is none, where the store reports it: S3 does not."""

    @abstractmethod
    def list(self, folder: str) -> list[str]:
        """Paths of all files below a folder; empty for a missing folder."""

    @abstractmethod
    def entries(self, folder: str) -> Sequence[tuple[str, int, Any]]:
        """Like :meth:`list`, with size and modification time; the time is ``None`` if it is unknown."""

    @abstractmethod
    def probe(self, path: str) -> None:
        """One request for a file that may be missing, not repeated."""

    @abstractmethod
    def remove_empty_folder(self, folder: str) -> None:
        """Remove an empty folder, on file systems with folders."""


class RemoteFile(io.RawIOBase):
    """A file of :meth:`RemoteFiles.open` whose errors are translated: readers take an ``OSError`` for damage."""

    def __init__(self, source: Any, translated: Callable[[], AbstractContextManager[None]]) -> None:
        """``translated``: a block in which the errors of ``source`` are translated."""
        self._source = source
        self._translated = translated

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._source.seek(offset, whence))

    def tell(self) -> int:
        return int(self._source.tell())

    def read(self, size: int = -1) -> bytes:
        with self._translated():
            return bytes(self._source.read(size))

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()
