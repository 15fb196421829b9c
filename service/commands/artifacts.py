from __future__ import annotations

import hashlib
import logging
from datetime import timedelta

from epochal.errors import Conflict, EnvironmentProblem, EpochalError, SnapshotError, StorageFull
from epochal.faults import declare
from epochal.service.catalog.artifacts import ArtifactRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.projects import ProjectRepository
from epochal.service.catalog.types import now
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_files import check_artifact, kind_of
from epochal.service.runtime.stored_files import StoredFiles
from epochal.snapshots import layout
from epochal.wire.versions import ArtifactAnswer

log = logging.getLogger("epochal.artifacts")

GIVEN_UP = declare("artifact.given-up", "the artifact is deleted from the catalog, its file exists")

UNUSED_KEPT = timedelta(days=7)
"""Retention time of an artifact without versions, from its last upload."""
_TRIES = 3
_AT_ONCE = 100


class ArtifactService:
    def __init__(self, settings: Settings, database: Database, files: StoredFiles) -> None:
        self._settings = settings
        self._database = database
        self._files = files

    def register(self, filename: str, content: bytes, project: str, by: str) -> tuple[ArtifactAnswer, bool]:
        """Return the artifact, and whether it is new to the project. Raises ``ArtifactError``, ``NotFound`` without
        such a project; ``StorageFull`` or ``EnvironmentProblem`` if it cannot be stored."""
        check_artifact(filename, content, self._settings.limits.artifact_unpacked_bytes)
        sha256 = hashlib.sha256(content).hexdigest()
        for _ in range(_TRIES):
            path = layout.artifact(sha256, kind_of(filename))
            try:
                lost = self._lost_file(sha256)
                if lost is None and (known := self._upload_again(sha256, filename, project)) is not None:
                    return known
                self._files.write("artifact", sha256, path, content)
            except StorageFull as error:
                raise StorageFull(
                    f"Not enough space for the artifact {filename!r}. Free some, and upload it again."
                ) from error
            except SnapshotError as error:
                raise EnvironmentProblem(f"The artifact cannot be stored. {error.message}") from error
            try:
                with self._database.writing() as session:
                    repository = ArtifactRepository(session)
                    row, new = repository.register(sha256, filename, len(content), project, by, path, lost)
                    ProjectRepository(session).hold(project)
                    return repository.get(row.sha256, project), new
            except Conflict:
                continue  # Another upload of the same bytes was faster.
        raise Conflict(f"The artifact {sha256} is being registered and deleted at the same time; try again.")

    def delete(self, sha256: str, project: str) -> None:
        """Delete the artifact, and its file unless another project uses it. No effect if it does not exist. Raises
        ``Conflict`` while a version of the project uses it."""
        with self._database.writing() as session:
            path = ArtifactRepository(session).delete(sha256, project)
        GIVEN_UP.hit()
        if path is not None:
            self._delete_file(path)

    def delete_unused(self) -> int:
        """Delete artifacts that no version uses. Returns their number; their files expire."""
        deleted = 0
        while True:
            with self._database.writing() as session:
                found = ArtifactRepository(session).delete_unused(now() - UNUSED_KEPT, _AT_ONCE)
            deleted += len(found)
            for sha256 in found:
                log.info("artifact %s was never used; deleted", sha256)
            if len(found) < _AT_ONCE:
                return deleted

    def _lost_file(self, sha256: str) -> str | None:
        """Path of the artifact's file if it is damaged: the next upload of it repairs it."""
        with self._database.reading() as session:
            row = ArtifactRepository(session).find(sha256)
        if row is None or row.path is None or self._files.is_there(row.path, row.bytes):
            return None
        return row.path

    def _upload_again(self, sha256: str, filename: str, project: str) -> tuple[ArtifactAnswer, bool] | None:
        with self._database.writing() as session:
            repository = ArtifactRepository(session)
            found = repository.uploaded_again(sha256, filename, project)
            if found is None or found[0].path is None:
                return None
            ProjectRepository(session).hold(project)
            return repository.get(sha256, project), found[1]

    def _delete_file(self, path: str) -> None:
        try:
            self._files.delete(path)
        except EpochalError as error:
            log.warning("%s will be deleted later: %s", path, error)
