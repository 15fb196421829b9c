"""Local cache of artifacts from the store, where builders can read them, in a folder that may be lost.

Several processes of a machine may share the folder: a copy is verified before it is moved into place atomically, and is
not removed while a process that has recently requested it may not have read it yet.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from epochal.errors import ArtifactError, EnvironmentProblem, FileMissing
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Artifact
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_files import keep, kept_for_a_while
from epochal.service.runtime.stored_files import StoredFiles
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger("epochal.artifacts")

LARGEST_BYTES = 1 << 30
"""Maximum total size of the copies; copies that were requested recently are retained nevertheless."""
_IN_USE_SECONDS = 900.0


def artifact_cache(settings: Settings, database: Database) -> ArtifactCache:
    """The cache of a process that uses nothing else of the store."""
    files = StoredFiles(database, SnapshotStore(settings.store_url))
    return ArtifactCache(settings.artifact_cache_directory, files)


class ArtifactCache:
    """``{sha256}/{filename}`` below ``folder``, whose permissions determine the access."""

    def __init__(self, folder: Path, files: StoredFiles, largest_bytes: int = LARGEST_BYTES) -> None:
        self._folder = folder
        self._files = files
        self._largest_bytes = largest_bytes

    def file(self, artifact: Artifact) -> Path:
        """A copy that is retained for some minutes at least. The file has its author's name, which tracebacks show.

        Raises ``ArtifactError`` if the artifact has to be uploaded again, ``SnapshotError`` if the store does not
        answer, ``EnvironmentProblem`` if there is no space for the copy.
        """
        path = self._folder / artifact.sha256 / artifact.filename
        try:
            os.utime(path)  # Marks the copy as in use, and checks that it exists.
        except FileNotFoundError:
            pass
        else:
            return path
        content = self._content(artifact)
        try:
            keep(path, content)
        except OSError as error:
            raise EnvironmentProblem(
                f"The artifact {artifact.sha256} cannot be copied to {path.parent}: {error.strerror}. Free some space."
            ) from error
        self._make_room(path.parent)
        return path

    def for_a_while(self, filename: str, content: bytes) -> AbstractContextManager[Path]:
        """Provide an unregistered artifact to a builder as a file; it is deleted at the end of the block."""
        return kept_for_a_while(self._folder, filename, content)

    def _content(self, artifact: Artifact) -> bytes:
        if artifact.path is None:
            raise ArtifactError(
                f"The artifact {artifact.sha256} ({artifact.filename}) has no file in the store. Upload the same file "
                "again (POST /v1/artifacts)."
            )
        try:
            content = self._files.read(artifact.path, f"artifact {artifact.sha256}")
        except FileMissing as error:
            raise ArtifactError(f"{error.message} Or upload the same file again (POST /v1/artifacts).") from error
        if hashlib.sha256(content).hexdigest() != artifact.sha256:
            raise ArtifactError(
                f"The artifact {artifact.sha256} ({artifact.filename}) was changed in the store: {artifact.path} has "
                "another checksum. Delete that file, and upload the artifact again (POST /v1/artifacts)."
            )
        return content

    def _make_room(self, newest: Path) -> None:
        """Remove the least recently requested copies. Copies that cannot be removed are left for the next call."""
        copies = sorted(self._copies())
        total = sum(size for _, size, _ in copies)
        oldest = time.time() - _IN_USE_SECONDS
        for used_at, size, folder in copies:
            if total <= self._largest_bytes or used_at > oldest:
                return
            if folder != newest:
                shutil.rmtree(folder, ignore_errors=True)
                total -= size

    def _copies(self) -> Iterator[tuple[float, int, Path]]:
        for folder in self._folder.iterdir():
            with suppress(OSError):
                found = [path.stat() for path in folder.iterdir()]
                yield (
                    max((status.st_mtime for status in found), default=folder.stat().st_mtime),
                    sum(status.st_size for status in found),
                    folder,
                )
