"""Which files there are: under a path, a glob or a folder, on a local file system or any that fsspec knows."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from epochal.errors import SourceError

_MAGIC = frozenset("*?[")


@dataclass(frozen=True, order=True)
class FileRecord:
    """A file as a slice records it. Ordered by modification time, then path: the order in which files are taken."""

    modified_ns: int
    path: str
    size: int

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "mtime_ns": self.modified_ns}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> FileRecord:
        return cls(modified_ns=int(record["mtime_ns"]), path=str(record["path"]), size=int(record["size"]))


def list_files(location: str) -> list[FileRecord]:
    """All files at ``location`` (absolute), oldest first. Of a folder: the files in it, not in its folders.

    A path that exists is taken as it is, also with ``[``; any other with ``*``, ``?`` or ``[`` is a pattern.
    Names that start with ``_`` or ``.`` are skipped, as Spark does. Raises ``SourceError`` when the folder is missing.
    """
    try:
        records = _list_remote(location) if "://" in location else _list_local(location)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SourceError(f"{location} cannot be listed: {reason}. Check the path and its permissions.") from error
    return sorted(records)


def current(path: str) -> FileRecord | None:
    """The file as it is now, ``None`` when it is missing. Raises ``SourceError`` when that cannot be known."""
    try:
        if "://" in path:
            filesystem, inner = _filesystem(path)
            return _remote_record(path, filesystem.info(inner))
        return _local_record(path, os.stat(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.") from error


def _list_local(location: str) -> Iterable[FileRecord]:
    if _MAGIC & set(location) and not os.path.exists(location):
        root = _fixed_part(location)
        if not os.path.isdir(root):
            raise _missing(root)
        paths = [path for path in glob.glob(location, recursive=True) if _visible(os.path.relpath(path, root))]
        return [_local_record(path, status) for path in paths if (status := _status(path)) is not None]
    if os.path.isdir(location):
        with os.scandir(location) as entries:
            return [
                _local_record(entry.path, entry.stat()) for entry in entries if _visible(entry.name) and entry.is_file()
            ]
    if os.path.isfile(location):
        return [_local_record(location, os.stat(location))]
    raise _missing(location)


def _list_remote(location: str) -> Iterable[FileRecord]:
    filesystem, inner = _filesystem(location)
    if _MAGIC & set(inner):
        details = filesystem.glob(inner, detail=True)
        root = _fixed_part(inner)
        found = {path: info for path, info in details.items() if _visible(os.path.relpath(path, root))}
    elif filesystem.isdir(inner):
        found = {info["name"]: info for info in filesystem.ls(inner, detail=True)}
        found = {path: info for path, info in found.items() if _visible(path.rstrip("/").rpartition("/")[2])}
    elif filesystem.exists(inner):
        found = {inner: filesystem.info(inner)}
    else:
        raise _missing(location)
    return [
        _remote_record(filesystem.unstrip_protocol(path), info)
        for path, info in found.items()
        if info["type"] == "file"
    ]


def _filesystem(url: str) -> tuple[Any, str]:
    import fsspec

    filesystem, inner = fsspec.core.url_to_fs(url)
    filesystem.invalidate_cache()
    return filesystem, inner


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path) if os.path.isfile(path) else None
    except FileNotFoundError:
        return None


def _local_record(path: str, status: os.stat_result) -> FileRecord:
    return FileRecord(modified_ns=status.st_mtime_ns, path=path, size=status.st_size)


def _remote_record(path: str, info: dict[str, Any]) -> FileRecord:
    modified = next(
        (info[key] for key in ("mtime", "LastModified", "last_modified", "created", "updated") if key in info), 0
    )
    seconds = modified.timestamp() if isinstance(modified, datetime) else float(modified or 0)
    return FileRecord(modified_ns=round(seconds * 1_000_000) * 1_000, path=path, size=int(info.get("size") or 0))


def _visible(relative: str) -> bool:
    return not any(part.startswith(("_", ".")) and part not in (".", "..") for part in relative.split("/"))


def _fixed_part(pattern: str) -> str:
    """The folders before the first that holds a wildcard."""
    fixed = []
    for part in pattern.split("/"):
        if _MAGIC & set(part):
            break
        fixed.append(part)
    return "/".join(fixed) or "/"


def _missing(path: str) -> SourceError:
    return SourceError(f"There is no file or folder {path}. Create it, or correct the path; an empty folder will do.")
