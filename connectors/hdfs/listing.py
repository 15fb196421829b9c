"""Which files there are in HDFS: under a path, a pattern or a folder."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from epochal.backends.hdfs.client import FileStatus, WebHdfs
from epochal.connectors.file_listing import FileRecord
from epochal.errors import SourceError

_MAGIC = frozenset("*?[")
_COPYING = "._COPYING_"
"""How ``hdfs dfs -put`` names a file that is not whole yet."""


def list_files(hdfs: WebHdfs, location: str) -> list[FileRecord]:
    """All files at ``location``, oldest first. Of a folder: the files in it, not in its folders.

    A path that exists is taken as it is; any other with ``*``, ``?`` or ``[`` is a pattern, matched folder by folder.
    Names that start with ``_`` or ``.`` are skipped, as Spark does. Raises ``SourceError`` when the folder is missing,
    and the errors of HDFS.
    """
    status = hdfs.status(location)
    if status is None and _MAGIC & set(location):
        found: Iterable[FileStatus] = _matching(hdfs, location)
    elif status is None:
        raise _missing(location)
    else:
        found = hdfs.list(location).values() if status.is_folder else [status]
    return sorted(record_of(status) for status in found if not status.is_folder and _visible(status.path))


def current(hdfs: WebHdfs, records: Iterable[FileRecord]) -> dict[str, FileRecord]:
    """The files as they are now, by path, those that are still there. One request for each of their folders."""
    folders = {posixpath.dirname(record.path) for record in records}
    found = (status for folder in sorted(folders) for status in hdfs.list(folder).values())
    return {status.path: record_of(status) for status in found if not status.is_folder}


def record_of(status: FileStatus) -> FileRecord:
    """The file as a slice records it."""
    return FileRecord(modified_ns=status.modified_ms * 1_000_000, path=status.path, size=status.length)


def _matching(hdfs: WebHdfs, pattern: str) -> Iterator[FileStatus]:
    parts = pattern.strip("/").split("/")
    fixed = next(number for number, part in enumerate(parts) if _MAGIC & set(part))
    root = "/" + "/".join(parts[:fixed])
    status = hdfs.status(root)
    if status is None:
        raise _missing(root)
    found = [status]
    for part in parts[fixed:]:
        inside = (item for folder in found if folder.is_folder for item in hdfs.list(folder.path).items())
        found = [entry for name, entry in inside if _visible(name) and fnmatchcase(name, part)]
    yield from found


def _visible(path: str) -> bool:
    name = posixpath.basename(path)
    return not name.startswith(("_", ".")) and not name.endswith(_COPYING)


def _missing(path: str) -> SourceError:
    return SourceError(
        f"There is no file or folder {path} in HDFS. Create it, or correct the path; an empty folder will do."
    )
