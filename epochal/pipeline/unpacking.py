"""Unpacking of untrusted archives: no paths outside of the folder, no links, limits on size and number of files."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path, PurePosixPath

from epochal.errors import ArtifactError

LARGEST_ARCHIVE = 200 * 1024 * 1024
"""Maximum size of all unpacked files of an archive, in bytes."""
MOST_FILES = 5_000

_CHUNK = 1024 * 1024


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the zip ``archive`` into an existing ``folder``. Raises ``ArtifactError`` with member and reason."""
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = opened.infolist()
            if len(entries) > MOST_FILES:
                raise ArtifactError(f"{archive.name} contains {len(entries)} files; the maximum is {MOST_FILES}.")
            left = LARGEST_ARCHIVE
            for entry in entries:
                left = _unpack_entry(opened, entry, folder, archive.name, left)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ArtifactError(f"{archive.name} is not a readable zip archive: {error}. Create it again.") from error
    except RuntimeError as error:
        raise ArtifactError(
            f"{archive.name} cannot be unpacked: {error}. Encrypted archives are not supported."
        ) from error


def _unpack_entry(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, name: str, left: int) -> int:
    target = _safe_target(entry, folder, name)
    if entry.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return left
    target.parent.mkdir(parents=True, exist_ok=True)
    with opened.open(entry) as source, target.open("wb") as written:
        # The sizes in the archive are untrusted: count the unpacked bytes.
        while chunk := source.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise ArtifactError(
                    f"{name} unpacks to more than {LARGEST_ARCHIVE // 1024**2} MB. Leave data files out."
                )
            written.write(chunk)
    return left


def _safe_target(entry: zipfile.ZipInfo, folder: Path, name: str) -> Path:
    path = PurePosixPath(entry.filename)
    unsafe = path.is_absolute() or ".." in path.parts or "\\" in entry.filename or ":" in entry.filename
    if unsafe or not path.parts or stat.S_ISLNK(entry.external_attr >> 16):
        raise ArtifactError(
            f"{name} contains {entry.filename!r}, a link or a path outside of the archive. Leave it out."
        )
    return folder.joinpath(*path.parts)
