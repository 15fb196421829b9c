"""Artifacts that an earlier version of Epochal has put into a data folder: moved into the store, once.

Each control plane moves those that it has, when it starts; several may do so at once, and each may end anywhere.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from pathlib import Path

from epochal.errors import EpochalError
from epochal.service.catalog.artifacts import ArtifactRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Artifact
from epochal.service.runtime.artifact_files import kind_of
from epochal.service.runtime.stored_files import StoredFiles
from epochal.snapshots import layout
from epochal.wire.projects import DEFAULT_PROJECT

log = logging.getLogger("epochal.artifacts")

BY = "epochal"


def adopt_artifacts(folder: Path, database: Database, files: StoredFiles) -> None:
    """``folder``: of the earlier version. What cannot be moved is said in the log, with what to do."""
    with database.reading() as session:
        artifacts = ArtifactRepository(session).without_file()
    for artifact in artifacts:
        path = folder / artifact.sha256 / artifact.filename
        try:
            _adopt(path, artifact, database, files)
        except FileNotFoundError:
            _missing(path, artifact, database)
        except OSError as error:
            log.error("artifact %s cannot be read from %s, and stays there: %s", artifact.sha256, path, error.strerror)
        except EpochalError as error:
            log.error("artifact %s cannot be moved into the store, and stays at %s: %s", artifact.sha256, path, error)
            return  # The store or the catalog does not answer: the next start goes on.
    with suppress(OSError):
        folder.rmdir()


def _adopt(path: Path, artifact: Artifact, database: Database, files: StoredFiles) -> None:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != artifact.sha256:
        log.error("%s is not artifact %s any more: its checksum is another one", path, artifact.sha256)
        raise FileNotFoundError(path)
    stored = layout.artifact(artifact.sha256, kind_of(artifact.filename))
    files.write("artifact", artifact.sha256, stored, content)
    with database.writing() as session:
        repository = ArtifactRepository(session)
        repository.register(artifact.sha256, artifact.filename, len(content), DEFAULT_PROJECT, BY, stored, None)
    path.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()


def _missing(path: Path, artifact: Artifact, database: Database) -> None:
    with database.reading() as session:
        users = ArtifactRepository(session).users(artifact.sha256)
    log.warning(
        "Artifact %s (%s), the code of %s, is neither in the store nor at %s. Start the control plane that it was "
        "uploaded to once with this version of Epochal, or upload the same file again (POST /v1/artifacts): until "
        "then what is made of it cannot be started.",
        artifact.sha256,
        artifact.filename,
        ", ".join(users) or "no version",
        path,
    )
