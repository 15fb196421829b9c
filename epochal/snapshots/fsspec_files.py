"""Whole files, atomically, on HDFS and other file systems that fsspec reaches.

WebHDFS does not write files atomically: a file is visible from its first byte, and a broken upload leaves a shorter
file without an error. Here files are written under a temporary name, their length is checked, and they are renamed.
When the rename returns, the NameNode has logged it; DataNodes have the bytes, and sync them to disk only if
``dfs.datanode.synconclose`` is set.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import fsspec

from epochal.snapshots.layout import TEMPORARY
from epochal.snapshots.remote_files import Data, RemoteFiles

_RENAMED_INTO_PLACE = ("webhdfs", "webHDFS")
_MOST_KEPT = 64
_PASSING = ("safe mode", "standby")
"""Words in the messages of a NameNode that serves requests again later."""


class FsspecFiles(RemoteFiles):
    """The files below an fsspec URL."""

    def __init__(self, url: str) -> None:
        with _system_errors(url):
            self._filesystem, self._root = fsspec.core.url_to_fs(url)
        protocol = self._filesystem.protocol
        names = (protocol,) if isinstance(protocol, str) else protocol
        self._has_folders = any(name in _RENAMED_INTO_PLACE for name in names)

    def write(self, path: str, data: Data) -> None:
        with _system_errors(path):
            if self._has_folders:
                self._write_and_rename(self._place(path), bytes(data))
            else:
                self._filesystem.pipe_file(self._place(path), bytes(data))

    def create(self, path: str, data: bytes) -> None:
        place = self._place(path)
        with _system_errors(path):
            if self._filesystem.exists(place):
                raise FileExistsError(errno.EEXIST, "the file exists", path)
        self.write(path, data)

    def read(self, path: str) -> bytes:
        with _system_errors(path):
            if not self._has_folders:
                return bytes(self._filesystem.cat_file(self._place(path)))
            with self._filesystem.open(self._place(path), "rb") as file:
                data = bytes(file.read())
                if len(data) != file.size:  # the response is a DataNode's error message
                    raise OSError(errno.EIO, f"{len(data)} bytes came instead of {file.size}", path)
                return data

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        place = self._place(path)
        with _system_errors(path):
            if self._filesystem.async_impl:  # concurrently
                starts, ends = [offset for offset, _ in ranges], [offset + size for offset, size in ranges]
                return list(self._filesystem.cat_ranges([place] * len(ranges), starts, ends, on_error="raise"))
            # WebHDFS files only support a read-ahead cache: limit it to one byte.
            unbuffered = {"block_size": 1} if self._has_folders else {"cache_type": "none"}
            with self._filesystem.open(place, "rb", **unbuffered) as file:
                return [_read_range(file, path, offset, size) for offset, size in ranges]

    def read_from(self, path: str, offset: int) -> bytes:
        return self.read_ranges(path, [(offset, self.size(path) - offset)])[0]

    def open(self, path: str, size: int) -> Any:
        with _system_errors(path):
            return self._filesystem.open(self._place(path), "rb")

    def size(self, path: str) -> int:
        with _system_errors(path):
            return int(self._filesystem.size(self._place(path)))

    def delete(self, path: str) -> None:
        with _system_errors(path):
            if self._has_folders:
                self._filesystem.info(self._place(path))  # its delete does not report a missing file
            self._filesystem.rm_file(self._place(path))

    def list(self, folder: str) -> list[str]:
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
        prefix = self._filesystem._strip_protocol(self._root).rstrip("/") + "/"
        with _system_errors(folder):
            return [
                (f"{at.rstrip('/')}/{name}".removeprefix(prefix), int(about.get("size") or 0), _written(about))
                for at, _, names in self._filesystem.walk(self._place(folder), on_error=_unless_missing, detail=True)
                for name, about in names.items()
                if name
            ]

    def probe(self, path: str) -> None:
        self.size(path)

    def remove_empty_folder(self, folder: str) -> None:
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
            # fsspec's own `mv` ignores the answer, and would move into a folder of that name.
            self._filesystem._call("RENAME", "put", temporary, destination=path, renameoptions="OVERWRITE")
        except (OSError, RuntimeError):
            # The answer may have been lost: the rename succeeded if only the new name exists, with the full length.
            if self._filesystem.exists(temporary) or int(self._filesystem.size(path)) != length:
                raise


class _Kept(threading.local):
    """Cache of file systems by URL, per thread, since threads must not share connections."""

    def __init__(self) -> None:
        self.files: dict[str, FsspecFiles] = {}
        self.process = os.getpid()


_kept = _Kept()


def fsspec_files(url: str) -> FsspecFiles:
    """Files below a URL, cached per thread: finding the file system can take longer than reading an object."""
    if _kept.process != os.getpid() or len(_kept.files) >= _MOST_KEPT:  # forked processes must not share them either
        _kept.files, _kept.process = {}, os.getpid()
    files = _kept.files.get(url)
    if files is None:
        files = _kept.files[url] = FsspecFiles(url)
    return files


def _read_range(file: Any, path: str, offset: int, size: int) -> bytes:
    file.seek(offset)
    data = bytes(file.read(size))
    if len(data) != size and offset + size <= getattr(file, "size", 0):  # the response is a DataNode's error message
        raise OSError(errno.EIO, f"{len(data)} bytes came instead of {size}", path)
    return data


def _written(about: dict[str, Any]) -> Any:
    """Modification time, under the names of various file systems: a time, or seconds or (HDFS) milliseconds since
    1970."""
    if "modificationTime" in about:
        return int(about["modificationTime"]) / 1000
    return next((about[name] for name in ("mtime", "LastModified", "last_modified", "created") if name in about), None)


def _unless_missing(error: OSError) -> None:
    """Ignore missing folders; raise other errors, which must not look like an empty folder."""
    if not isinstance(error, FileNotFoundError):
        raise error


@contextmanager
def _system_errors(path: str) -> Iterator[None]:
    """Translate a server's errors in the block into ``OSError``, without the address and the token."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise _refused(str(error), path) from error
    except OSError as error:
        response = getattr(error, "response", None)
        if response is not None:
            raise _refused(_remote_exception(response), path) from error
        if getattr(error, "request", None) is not None:
            raise ConnectionError(
                errno.EHOSTUNREACH, f"the server does not answer ({type(error).__name__})", path
            ) from error
        raise


def _refused(text: str, path: str) -> OSError:
    reason = next(iter(text.strip().splitlines()), "the server refused it")
    if "quota" in reason.lower() and "exceeded" in reason.lower():
        return OSError(errno.EDQUOT, reason, path)
    if any(word in reason.lower() for word in _PASSING):
        return ConnectionError(errno.EAGAIN, reason, path)
    return OSError(errno.EIO, reason, path)


def _remote_exception(response: Any) -> str:
    """Message of a WebHDFS exception in an HTTP error."""
    try:
        return str(response.json()["RemoteException"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answers {response.status_code}"
