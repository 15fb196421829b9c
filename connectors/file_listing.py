"""Listing of files by path, glob or folder, on a local file system or any file system supported by fsspec.

A folder contributes its own files and those of its partition folders (``dt=2026-05-01/``); with ``recursive``, those of
every subfolder. The matches of a pattern are treated like the contents of a folder.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from epochal.connectors.file_partitions import fixed_part, is_read, is_visible
from epochal.errors import SourceError

_MAGIC = frozenset("*?[")


@dataclass(frozen=True, order=True)
class FileRecord:
    """A file as recorded in a slice. Records are ordered by modification time, then path, as the source takes files."""

    modified_ns: int
    path: str
    size: int
    version: str = ""
    """The entity tag, on object stores."""

    def as_json(self) -> dict[str, Any]:
        version = {"version": self.version} if self.version else {}
        return {"path": self.path, "size": self.size, "mtime_ns": self.modified_ns, **version}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> FileRecord:
        return cls(
            modified_ns=int(record["mtime_ns"]),
            path=str(record["path"]),
            size=int(record["size"]),
            version=str(record.get("version", "")),
        )


def list_files(location: str, recursive: bool = False) -> list[FileRecord]:
    """List all files at ``location`` (absolute) that a source reads, oldest first.

    An existing path is taken literally, even if it contains ``[``. Any other path with ``*``, ``?`` or ``[`` is a
    pattern. Names that start with ``_`` or ``.`` are skipped, as in Spark. Raises ``SourceError`` if the folder is
    missing.
    """
    try:
        records = _list_remote(location, recursive) if "://" in location else _list_local(location, recursive)
        return sorted({record.path: record for record in records}.values())
    except OSError as error:
        reason = error.strerror or str(error)
        raise SourceError(f"{location} cannot be listed: {reason}. Check the path and its permissions.") from error


def list_first(location: str, recursive: bool) -> list[FileRecord]:
    """First :func:`list_files` of a reader. Raises ``SourceError`` if only subfolders that are not read have data."""
    found = list_files(location, recursive)
    return check_not_elsewhere(location, found, recursive, partial(list_files, location, True))


def check_not_elsewhere(
    location: str, found: list[FileRecord], recursive: bool, every: Callable[[], list[FileRecord]]
) -> list[FileRecord]:
    """Return ``found``. Raises ``SourceError`` if it is empty and a subfolder that is not read has data.

    ``every`` lists the files of every subfolder.
    """
    other = [] if found or recursive else every()
    if other:
        raise SourceError(
            f"{location} has data files only in subfolders that are not read, such as {other[0].path}. Read every "
            "subfolder with recursive=True, or correct the path; folders named key=value are read without it."
        )
    return found


def current(path: str) -> FileRecord | None:
    """The current record of a file; ``None`` if it is missing. Raises ``SourceError`` if the file is not accessible."""
    try:
        if "://" in path:
            filesystem, inner = _filesystem(path)
            return _remote_record(path, filesystem.info(inner))
        return _local_record(path, os.stat(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.") from error


def _list_local(location: str, recursive: bool) -> Iterator[FileRecord]:
    if _MAGIC & set(location) and not os.path.exists(location):
        root = fixed_part(location)
        if not os.path.isdir(root):
            raise _missing(root)
        for path in map(_without_slash, glob.glob(location, recursive=True)):
            folder, name = os.path.split(path)
            if not _leads(os.path.relpath(folder, root), recursive):
                continue
            with suppress(FileNotFoundError):  # deleted in the meantime
                if os.path.isdir(path) and is_read(name, recursive):
                    yield from _local_folder(path, recursive)
                elif os.path.isfile(path) and is_visible(name):
                    yield _local_record(path, os.stat(path))
    elif os.path.isdir(location):
        yield from _local_folder(location, recursive)
    elif os.path.isfile(location):
        yield _local_record(location, os.stat(location))
    else:
        raise _missing(location)


def _local_folder(folder: str, recursive: bool) -> Iterator[FileRecord]:
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.is_dir():
                    if is_read(entry.name, recursive) and not (entry.is_symlink() and _is_above(entry.path, folder)):
                        yield from _local_folder(entry.path, recursive)
                elif is_visible(entry.name) and entry.is_file():
                    yield _local_record(entry.path, entry.stat())
            except FileNotFoundError:  # deleted in the meantime
                continue


def _without_slash(path: str) -> str:
    return path.rstrip("/") or "/"


def _is_above(link: str, folder: str) -> bool:
    target, inside = os.path.realpath(link), os.path.realpath(folder)
    return os.path.commonpath([target, inside]) == target


def _list_remote(location: str, recursive: bool) -> Iterator[FileRecord]:
    filesystem, inner = _filesystem(location)
    if _MAGIC & set(inner):
        root = fixed_part(inner)
        details = filesystem.glob(inner, detail=True)
        entries = [info for path, info in details.items() if _leads(_between(root, path), recursive)]
    elif filesystem.isdir(inner):
        entries = [info for info in filesystem.ls(inner, detail=True) if info["name"].rstrip("/") != inner.rstrip("/")]
    elif filesystem.exists(inner):
        yield _remote_record(filesystem.unstrip_protocol(inner), filesystem.info(inner))
        return
    else:
        raise _missing(location)
    for info in entries:
        path = info["name"].rstrip("/")
        name = path.rpartition("/")[2]
        if info["type"] == "file" and is_visible(name):
            yield _remote_record(filesystem.unstrip_protocol(path), info)
        elif info["type"] == "directory" and is_read(name, recursive):
            # One request for the whole subtree, if the file system supports it.
            for found, detail in filesystem.find(path, detail=True).items():
                folders = _between(path, found).split("/")
                if is_visible(found.rpartition("/")[2]) and all(is_read(each, recursive) for each in folders if each):
                    yield _remote_record(filesystem.unstrip_protocol(found), detail)


def _between(folder: str, path: str) -> str:
    """The folders from ``folder`` to a file or folder in it."""
    return path[len(folder.rstrip("/")) + 1 :].rpartition("/")[0]


def _leads(folders: str, recursive: bool) -> bool:
    """Check that none of the folders matched by a pattern is hidden, so that their files are read."""
    names = [each for each in folders.split("/") if each not in ("", ".", "..")]
    return all(is_visible(each) or is_read(each, recursive) for each in names)


def _filesystem(url: str) -> tuple[Any, str]:
    import fsspec

    filesystem, inner = fsspec.core.url_to_fs(url)
    filesystem.invalidate_cache()
    return filesystem, inner


def _local_record(path: str, status: os.stat_result) -> FileRecord:
    return FileRecord(modified_ns=status.st_mtime_ns, path=path, size=status.st_size)


def _remote_record(path: str, info: dict[str, Any]) -> FileRecord:
    modified = next(
        (info[key] for key in ("mtime", "LastModified", "last_modified", "created", "updated") if key in info), 0
    )
    seconds = modified.timestamp() if isinstance(modified, datetime) else float(modified or 0)
    return FileRecord(modified_ns=round(seconds * 1_000_000) * 1_000, path=path, size=int(info.get("size") or 0))


def _missing(path: str) -> SourceError:
    return SourceError(f"There is no file or folder {path}. Create it (it may be empty), or correct the path.")
