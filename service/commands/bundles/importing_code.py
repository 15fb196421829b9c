"""The code that comes with a bundle, as if it had been uploaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.orm import Session

from epochal.service.catalog.artifacts import ArtifactRepository
from epochal.service.domain.artifact_files import artifact_path, check_artifact, keep
from epochal.service.domain.settings import Settings
from epochal.snapshots.bundle_format import BundleError, BundleHeader


class Code:
    """``artifacts``: by checksum."""

    def __init__(self, settings: Settings, header: BundleHeader, artifacts: Mapping[str, Path]) -> None:
        self._settings = settings
        self._header = header
        self._artifacts = artifacts

    def register(self, session: Session, by: str) -> None:
        """In the catalog. Raises ``ArtifactError``; ``BundleError`` where the bundle does not hold it."""
        repository = ArtifactRepository(session)
        for version in self._header.versions:
            if version.artifact not in self._artifacts:
                raise BundleError(f"The bundle does not hold the code {version.artifact}: it was altered.")
            content = self._artifacts[version.artifact].read_bytes()
            check_artifact(version.filename, content, self._settings.limits.artifact_unpacked_bytes)
            if repository.find(version.artifact) is None:
                repository.add(version.artifact, version.filename, len(content), by)

    def keep(self, session: Session) -> None:
        """As files: last of all, when the bundle is not refused any more."""
        repository = ArtifactRepository(session)
        for sha256, file in self._artifacts.items():
            path = artifact_path(self._settings.artifacts_directory, sha256, repository.get(sha256).filename)
            if not path.exists():
                keep(path, file.read_bytes())
