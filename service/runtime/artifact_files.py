"""Artifact files: validated before they are stored; stored under the author's file name, as far as it is safe, since
errors and tracebacks show it."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from uuid import uuid4

from epochal.errors import ArtifactError
from epochal.pipeline.unpacking import MOST_FILES

_END_OF_DIRECTORY, _END_BYTES = b"PK\x05\x06", 22
_LARGEST_DIRECTORY = 2 << 20
_KINDS = (".py", ".zip")
_HARMLESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


def check_artifact(filename: str, content: bytes, unpacked_limit: int) -> None:
    """Validate an artifact. Raises ``ArtifactError``: not a Python file or zip, unsafe names in the zip, or too large
    when unpacked."""
    if not _HARMLESS.fullmatch(filename):
        raise ArtifactError(f"{filename!r} is not a plain file name: use letters, digits, '.', '_' and '-'.")
    if not content:
        raise ArtifactError(f"{filename!r} is empty.")
    if kind_of(filename) == ".py":
        _check_source(filename, content)
    else:
        _check_archive(filename, content, unpacked_limit)


def keep(path: Path, content: bytes) -> None:
    """Write a file durably and atomically: a reader sees all of it or nothing.

    The folder above that of ``path`` determines the access: its group, and whether the group may read.
    """
    folder = path.parent
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _share_like(folder.parent, folder, 0o750)
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".incoming-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        _share_like(folder, Path(temporary), 0o640)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def kept_for_a_while(directory: Path, filename: str, content: bytes) -> Iterator[Path]:
    """Provide an unregistered artifact to a builder as a file; it is deleted at the end of the block."""
    folder = directory / f".{uuid4().hex}"
    try:
        keep(folder / filename, content)
        yield folder / filename
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _share_like(folder: Path, path: Path, most: int) -> None:
    status = folder.stat()
    if status.st_mode & 0o040:
        if status.st_gid != path.stat().st_gid:
            os.chown(path, -1, status.st_gid)
        path.chmod(status.st_mode & most)


def kind_of(filename: str) -> str:
    """The suffix: of a Python file or a zip. Raises ``ArtifactError``."""
    kind = PurePosixPath(filename).suffix.lower()
    if kind not in _KINDS:
        raise ArtifactError(f"{filename!r} is neither a Python file (.py) nor a zip of Python files (.zip).")
    return kind


def _check_source(filename: str, content: bytes) -> None:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{filename!r} is not UTF-8 text (byte {error.start}).") from None


def _check_archive(filename: str, content: bytes, unpacked_limit: int) -> None:
    _check_directory(filename, content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise ArtifactError(f"{filename!r} is not a zip file.") from None
    if len(members) > MOST_FILES:
        raise ArtifactError(f"{filename!r} holds {len(members)} files; {MOST_FILES} are allowed.")
    for member in members:
        path = PurePosixPath(member.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in member.filename:
            raise ArtifactError(f"{filename!r} holds {member.filename!r}, which points out of the zip.")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise ArtifactError(f"{filename!r} holds {member.filename!r}, a symbolic link; zip files, not links.")
        if member.flag_bits & 0x1:
            raise ArtifactError(f"{filename!r} is encrypted; zip it without a password.")
    if sum(member.file_size for member in members) > unpacked_limit:
        raise ArtifactError(f"{filename!r} unpacks to more than {unpacked_limit} bytes.")


def _check_directory(filename: str, content: bytes) -> None:
    """Check the size of the zip's directory before it is read, since it is read as a whole. The size is the 32-bit
    field of the end record; a 64-bit zip sets it to its maximum."""
    end = content.rfind(_END_OF_DIRECTORY, max(0, len(content) - _END_BYTES - 0xFFFF))
    if end < 0 or end + _END_BYTES > len(content):
        raise ArtifactError(f"{filename!r} is not a zip file.")
    (size,) = struct.unpack_from("<I", content, end + 12)
    if size > _LARGEST_DIRECTORY:
        raise ArtifactError(f"{filename!r} holds too many files, or too long names; {MOST_FILES} files are allowed.")
