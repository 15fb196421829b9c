"""Whole files, atomically, on file systems that fsspec reaches.

Object stores make an object visible whole, with one put. WebHDFS does not: a file is there, and grows, from its first
byte on, and a broken upload leaves a shorter one that looks well. There a file is written under a temporary name, its
length compared, and renamed. When the rename has returned, the NameNode has logged it; the bytes are with the
DataNodes, which write them to disk at once only where ``dfs.datanode.synconclose`` is set.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias
from uuid import uuid4

import fsspec
import pyarrow as pa

from epochal.snapshots.layout import TEMPORARY

Data: TypeAlias = "bytes | memoryview | pa.Buffer"

_RENAMED_INTO_PLACE = ("webhdfs", "webHDFS")
_MOST_KEPT = 64


class RemoteFiles:
    """The files below an fsspec URL. Paths are relative to it; all methods raise ``OSError``."""

    def __init__(self, url: str) -> None:
        with _system_errors(url):
            self._filesystem, self._root = fsspec.core.url_to_fs(url)
        protocol = self._filesystem.protocol
        names = (protocol,) if isinstance(protocol, str) else protocol
        self._has_folders = any(name in _RENAMED_INTO_PLACE for name in names)

    def write(self, path: str, data: Data) -> None:
        """After this returns the file is there, whole; before, it is not there at all."""
        with _system_errors(path):
            if self._has_folders:
                self._write_and_rename(self._place(path), bytes(data))
            else:
                self._filesystem.pipe_file(self._place(path), bytes(data))

    def read(self, path: str) -> bytes:
        """Raises ``FileNotFoundError``."""
        with _system_errors(path):
            if not self._has_folders:
                return bytes(self._filesystem.cat_file(self._place(path)))
            with self._filesystem.open(self._place(path), "rb") as file:
                data = bytes(file.read())
                if len(data) != file.size:  # what came is not the file, but a DataNode's excuse
                    raise OSError(errno.EIO, f"{len(data)} bytes came instead of {file.size}", path)
                return data

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """For each range, an offset and a number of bytes, its bytes and no more. Raises ``FileNotFoundError``."""
        place = self._place(path)
        with _system_errors(path):
            if self._filesystem.async_impl:  # all at once
                starts, ends = [offset for offset, _ in ranges], [offset + size for offset, size in ranges]
                return list(self._filesystem.cat_ranges([place] * len(ranges), starts, ends, on_error="raise"))
            # WebHDFS's files know no other cache than the one that reads ahead: here by a byte.
            unbuffered = {"block_size": 1} if self._has_folders else {"cache_type": "none"}
            with self._filesystem.open(place, "rb", **unbuffered) as file:
                return [_read_range(file, path, offset, size) for offset, size in ranges]

    def open(self, path: str) -> Any:
        """A file for reading in parts. Raises ``FileNotFoundError``."""
        with _system_errors(path):
            return self._filesystem.open(self._place(path), "rb")

    def size(self, path: str) -> int:
        """Bytes of a file. Raises ``FileNotFoundError``."""
        with _system_errors(path):
            return int(self._filesystem.size(self._place(path)))

    def delete(self, path: str) -> None:
        """Raises ``FileNotFoundError`` when there is none."""
        with _system_errors(path):
            if self._has_folders:
                self._filesystem.info(self._place(path))  # its delete does not say whether there was one
            self._filesystem.rm_file(self._place(path))

    def list(self, folder: str) -> list[str]:
        """All files below a folder, by their paths below the URL; none when there is no such folder."""
        prefix = self._filesystem._strip_protocol(self._root).rstrip("/") + "/"
        with _system_errors(folder):
            found = [
                f"{at.rstrip('/')}/{name}"
                for at, _, names in self._filesystem.walk(self._place(folder), on_error=_unless_missing)
                for name in names
                if name
            ]
        return [path.removeprefix(prefix) for path in found]

    def entries(self, folder: str) -> Sequence[tuple[str, int, Any]]:
        """As :meth:`list`, with the bytes of each file, and when it was written as far as the file system says so."""
        prefix = self._filesystem._strip_protocol(self._root).rstrip("/") + "/"
        with _system_errors(folder):
            return [
                (f"{at.rstrip('/')}/{name}".removeprefix(prefix), int(about.get("size") or 0), _written(about))
                for at, _, names in self._filesystem.walk(self._place(folder), on_error=_unless_missing, detail=True)
                for name, about in names.items()
                if name
            ]

    def remove_empty_folder(self, folder: str) -> None:
        """Where folders are things of their own; one that is not empty stays."""
        if self._has_folders:
            with suppress(OSError), _system_errors(folder):
                self._filesystem.rm(self._place(folder), recursive=False)

    def _place(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _write_and_rename(self, path: str, data: bytes) -> None:
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.{uuid4().hex[:8]}{TEMPORARY}"
        try:
            # A block larger than the file: one request with all of it, when the file is closed.
            with self._filesystem.open(temporary, "wb", block_size=len(data) + 1) as file:
                file.write(data)
            there = int(self._filesystem.size(temporary))
            if there != len(data):
                raise OSError(errno.EIO, f"{there} of {len(data)} bytes arrived", path)
            self._rename(temporary, path, len(data))
        except BaseException:
            with suppress(OSError, RuntimeError, ValueError):
                self._filesystem.rm_file(temporary)
            raise

    def _rename(self, temporary: str, path: str, length: int) -> None:
        try:
            # fsspec's own `mv` does not look at the answer, and would move into a folder of that name.
            self._filesystem._call("RENAME", "put", temporary, destination=path, renameoptions="OVERWRITE")
        except (OSError, RuntimeError):
            # Its answer may have been lost. A new name with the whole length, and the old one gone: it has happened.
            if self._filesystem.exists(temporary) or int(self._filesystem.size(path)) != length:
                raise


class _Kept(threading.local):
    """By URL, for the thread that asks: fsspec's file systems have connections, which threads do not share."""

    def __init__(self) -> None:
        self.files: dict[str, RemoteFiles] = {}
        self.process = os.getpid()


_kept = _Kept()


def remote_files(url: str) -> RemoteFiles:
    """The files below a URL, for this thread. To find its file system takes longer than many an object's read."""
    if _kept.process != os.getpid() or len(_kept.files) >= _MOST_KEPT:  # nor do processes that were forked
        _kept.files, _kept.process = {}, os.getpid()
    files = _kept.files.get(url)
    if files is None:
        files = _kept.files[url] = RemoteFiles(url)
    return files


def _read_range(file: Any, path: str, offset: int, size: int) -> bytes:
    file.seek(offset)
    data = bytes(file.read(size))
    if len(data) != size and offset + size <= getattr(
        file, "size", 0
    ):  # what came is not the file, but a DataNode's excuse
        raise OSError(errno.EIO, f"{len(data)} bytes came instead of {size}", path)
    return data


def _written(about: dict[str, Any]) -> Any:
    """File systems say it under their own names: a time, or seconds or (HDFS) milliseconds since 1970."""
    if "modificationTime" in about:
        return int(about["modificationTime"]) / 1000
    return next((about[name] for name in ("mtime", "LastModified", "last_modified", "created") if name in about), None)


def _unless_missing(error: OSError) -> None:
    """A folder that is not there, or not any more, holds nothing; anything else must not look like nothing."""
    if not isinstance(error, FileNotFoundError):
        raise error


@contextmanager
def _system_errors(path: str) -> Iterator[None]:
    """Inside the block, what a server refuses becomes an ``OSError``, without the address and the token in it."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise _refused(str(error), path) from error
    except OSError as error:
        response = getattr(error, "response", None)
        if response is not None:
            raise _refused(_remote_exception(response), path) from error
        if getattr(error, "request", None) is not None:
            raise OSError(errno.EHOSTUNREACH, f"the server does not answer ({type(error).__name__})", path) from error
        raise


def _refused(said: str, path: str) -> OSError:
    reason = next(iter(said.strip().splitlines()), "the server refused it")
    if "quota" in reason.lower() and "exceeded" in reason.lower():
        return OSError(errno.EDQUOT, reason, path)
    return OSError(errno.EIO, reason, path)


def _remote_exception(response: Any) -> str:
    """What WebHDFS says within an HTTP error."""
    try:
        return str(response.json()["RemoteException"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answers {response.status_code}"
