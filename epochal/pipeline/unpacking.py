"""Unpack an archive from outside: no path leaves the folder, no link, and bounds on size and number."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path, PurePosixPath

from epochal.errors import ArtifactError

LARGEST_ARCHIVE = 200 * 1024 * 1024
"""Bytes of all files of an archive, unpacked."""
MOST_FILES = 5_000

_CHUNK = 1024 * 1024


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the zip ``archive`` into the existing ``folder``. Raises ``ArtifactError`` naming entry and reason."""
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = opened.infolist()
            if len(entries) > MOST_FILES:
                raise ArtifactError(f"{archive.name} holds {len(entries)} files; {MOST_FILES} are allowed.")
            left = LARGEST_ARCHIVE
            for entry in entries:
                left = _unpack_entry(opened, entry, folder, archive.name, left)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ArtifactError(f"{archive.name} is not a zip archive that can be read: {error}. Make it again.") from error
    except RuntimeError as error:
        raise ArtifactError(f"{archive.name} cannot be unpacked: {error}. Encrypted archives are not taken.") from error


def _unpack_entry(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, name: str, left: int) -> int:
    target = _safe_target(entry, folder, name)
    if entry.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return left
    target.parent.mkdir(parents=True, exist_ok=True)
    with opened.open(entry) as source, target.open("wb") as written:
        # What the archive says of its sizes is not to be believed: count what comes out.
        while chunk := source.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise ArtifactError(f"{name} unpacks to over {LARGEST_ARCHIVE // 1024**2} MB. Leave data files out.")
            written.write(chunk)
    return left


def _safe_target(entry: zipfile.ZipInfo, folder: Path, name: str) -> Path:
    path = PurePosixPath(entry.filename)
    unsafe = path.is_absolute() or ".." in path.parts or "\\" in entry.filename or ":" in entry.filename
    if unsafe or not path.parts or stat.S_ISLNK(entry.external_attr >> 16):
        raise ArtifactError(f"{name} holds {entry.filename!r}, a link or a path out of the archive. Leave it out.")
    return folder.joinpath(*path.parts)
