"""The files of an artifact as texts, for display. Archives are untrusted: nothing is unpacked to a folder, members are
found by their exact names, and the number of bytes that are read is limited."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

from epochal.errors import ArtifactError, NotFound
from epochal.service.catalog.artifacts import ArtifactRepository
from epochal.service.catalog.database import Database
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.service.runtime.artifact_files import kind_of
from epochal.wire.versions import ArtifactSource, SourceFile

LARGEST_TEXT = 1 << 20
"""Maximum size of one text, in bytes."""
LARGEST_ANSWER = 2 << 20
"""Maximum number of bytes that are read for one answer."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Methods of compression whose readers need little memory."""
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)

Content = bytes | Literal["too_large", "unreadable"]


class SourceQueries:
    def __init__(self, database: Database, code: ArtifactCache) -> None:
        self._database = database
        self._code = code

    def source(self, sha256: str, project: str, path: str | None) -> ArtifactSource:
        """All files, or the file ``path``. Raises ``NotFound``, the errors of ``ArtifactCache.file``."""
        with self._database.reading() as session:
            repository = ArtifactRepository(session)
            known, row = repository.get(sha256, project), repository.find(sha256)
        assert row is not None
        file = self._code.file(row)
        if kind_of(file.name) == ".zip":
            found = tuple(_members(file, path))
        else:
            content: Content = file.read_bytes() if row.bytes <= LARGEST_TEXT else "too_large"
            found = (_file(known.filename, row.bytes, content),) if path in (None, known.filename) else ()
        if path is not None and not found:
            raise NotFound(f"Artifact {known.filename!r} has no file {path!r}.")
        return ArtifactSource(sha256=known.sha256, filename=known.filename, files=found)


def _members(file: Path, only: str | None) -> Iterator[SourceFile]:
    """Python files first, since the limit may exclude the last ones."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = _by_path(archive)
            if only is not None:
                members = {path: member for path, member in members.items() if path == only}
            left = LARGEST_ANSWER
            for path, member in sorted(members.items(), key=lambda each: (not each[0].endswith(".py"), each[0])):
                content, read = _content(archive, member, min(left, LARGEST_TEXT))
                left -= read
                yield _file(path, member.file_size, content)
    except (zipfile.BadZipFile, ValueError) as error:
        raise ArtifactError(f"{file.name} is not a readable zip archive: {error}.") from error


def _by_path(archive: zipfile.ZipFile) -> Mapping[str, zipfile.ZipInfo]:
    """Paths as after unpacking; of several members with one path, the last."""
    return {PurePosixPath(member.filename).as_posix(): member for member in archive.infolist() if not member.is_dir()}


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int) -> tuple[Content, int]:
    """The content, and the number of bytes that were read for it. The declared sizes are untrusted."""
    if member.compress_type not in _METHODS:
        return "unreadable", 0
    if member.file_size > most:
        return "too_large", 0
    try:
        with archive.open(member) as opened:
            content = opened.read(most + 1)
    except _UNREADABLE:
        return "unreadable", min(member.file_size, most)
    return ("too_large" if len(content) > most else content), len(content)


def _file(path: str, size: int, content: Content) -> SourceFile:
    if isinstance(content, bytes):
        try:
            return SourceFile(path=path, bytes=len(content), text=content.decode("utf-8"))
        except UnicodeDecodeError:
            return SourceFile(path=path, bytes=len(content), omitted="not_text")
    return SourceFile(path=path, bytes=size, omitted=content)
