from __future__ import annotations

import hashlib

from epochal.errors import EnvironmentProblem
from epochal.service.catalog.artifacts import ArtifactRepository, artifact_answer
from epochal.service.catalog.database import Database
from epochal.service.domain.artifacts import artifact_path
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_files import check_artifact, keep, remove
from epochal.wire.artifacts import ArtifactAnswer


class ArtifactService:
    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database

    def register(self, filename: str, content: bytes, by: str) -> tuple[ArtifactAnswer, bool]:
        """The artifact, and whether it is new. ``ArtifactError``; ``EnvironmentProblem`` when it cannot be kept."""
        check_artifact(filename, content, self._settings.limits.artifact_unpacked_bytes)
        sha256 = hashlib.sha256(content).hexdigest()
        with self._database.reading() as session:
            row = ArtifactRepository(session).find(sha256)
        path = artifact_path(self._settings.artifacts_directory, sha256, row.filename if row else filename)
        if row is None or not path.exists():
            try:
                keep(path, content)
            except OSError as error:
                raise EnvironmentProblem(f"The artifact cannot be kept in {path.parent}: {error.strerror}.") from error
        if row is not None:
            return artifact_answer(row), False
        with self._database.writing() as session:
            repository = ArtifactRepository(session)
            row = repository.find(sha256)
            new = row is None
            return artifact_answer(row or repository.add(sha256, filename, len(content), by)), new

    def delete(self, sha256: str) -> None:
        """With its file; nothing when it is not there. Raises ``Conflict`` while a version names it."""
        with self._database.writing() as session:
            row = ArtifactRepository(session).delete(sha256)
            if row is not None:
                # Before the commit: whoever registers the same bytes after it finds no file that is about to go.
                remove(artifact_path(self._settings.artifacts_directory, row.sha256, row.filename))
