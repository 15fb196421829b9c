"""Artifacts: uploaded code, the projects that may use it, and its files in the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, exists, select
from sqlalchemy.orm import Session

from epochal.errors import Conflict, NotFound
from epochal.service.catalog.models import Application, Artifact, ProjectArtifact, Version
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.store_files import StoreFiles
from epochal.service.catalog.types import now
from epochal.service.domain.pages import PageRequest
from epochal.wire.projects import local_name
from epochal.wire.versions import ArtifactAnswer

_NAMED = 5
"""Maximum number of versions named in a refusal to delete an artifact."""


class ArtifactRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self, sha256: str) -> Artifact | None:
        return self._session.get(Artifact, sha256)

    def get(self, sha256: str, project: str) -> ArtifactAnswer:
        """The artifact as the project uploaded it. Raises ``NotFound``, also for artifacts of other projects."""
        row, known = self.find(sha256), self._session.get(ProjectArtifact, (project, sha256))
        if row is None or known is None:
            raise NotFound(f"There is no artifact {sha256!r}.")
        return artifact_answer(row, known)

    def page(self, page: PageRequest, project: str) -> tuple[Sequence[ArtifactAnswer], str | None]:
        """Listed newest first, with the cursor of the next page."""
        known = (ProjectArtifact.sha256 == Artifact.sha256) & (ProjectArtifact.project == project)
        query = select(Artifact).join(ProjectArtifact, known)
        part = paginate(self._session, query, page, [Artifact.created_at, Artifact.sha256], descending=True)
        mine = {row.sha256: self._session.get_one(ProjectArtifact, (project, row.sha256)) for row in part.rows}
        return [artifact_answer(row, mine[row.sha256]) for row in part.rows], part.next_cursor

    def may_use(self, project: str, sha256: str) -> bool:
        return self._session.get(ProjectArtifact, (project, sha256)) is not None

    def allow(self, project: str, row: Artifact, filename: str) -> bool:
        """Let the project use the artifact; returns whether it could not before."""
        if self.may_use(project, row.sha256):
            return False
        self._session.add(ProjectArtifact(project=project, sha256=row.sha256, filename=filename, created_at=now()))
        self._session.flush()
        return True

    def delete(self, sha256: str, project: str) -> str | None:
        """Remove the artifact from the project. If no other project uses it, it is deleted and its file expires.
        Returns the path of the file, or ``None``.

        Raises ``Conflict`` while a version of the project uses it. Versions of deleted applications count, because
        forks depend on their snapshots.
        """
        row = self._session.get(Artifact, sha256, with_for_update=True, populate_existing=True)
        if row is None or not self.may_use(project, sha256):
            return None
        users = self.users(sha256, project)
        if users:
            raise Conflict(
                f"Artifact {sha256} is the code of {', '.join(users)}: history, rollbacks and forks need it."
            )
        of_project = ProjectArtifact.sha256 == sha256, ProjectArtifact.project == project
        self._session.execute(delete(ProjectArtifact).where(*of_project))
        others = select(ProjectArtifact.project).where(ProjectArtifact.sha256 == sha256).limit(1)
        if self._session.scalar(others) is not None or self.users(sha256):
            return None
        return self._delete(row)

    def delete_unused(self, uploaded_before: datetime, most: int) -> Sequence[str]:
        """Delete up to ``most`` artifacts that no version uses and that were not uploaded since; their sha256."""
        is_used = exists().where(Version.artifact == Artifact.sha256)
        unused = select(Artifact).where(Artifact.uploaded_at < uploaded_before, ~is_used, Artifact.path.is_not(None))
        deleted = []
        for row in self._session.scalars(unused.limit(most).with_for_update(skip_locked=True)).all():
            if not self.users(row.sha256):  # checked again under the row's lock
                self._delete(row)
                deleted.append(row.sha256)
        return deleted

    def register(
        self, sha256: str, filename: str, size: int, project: str, by: str, path: str, lost: str | None
    ) -> tuple[Artifact, bool]:
        """Register the file at ``path`` as the artifact's file. Returns the row, and whether the artifact is new to the
        project.

        ``lost``: path of the previous file, if that is missing. If a concurrent upload has registered another file,
        ``path`` expires.
        """
        files, moment = StoreFiles(self._session), now()
        row = self._session.get(Artifact, sha256, with_for_update=True, populate_existing=True)
        if row is None:
            row = Artifact(sha256=sha256, filename=filename, bytes=size, created_at=moment, created_by=by, path=path)
            row.uploaded_at = moment
            self._session.add(row)
            files.name(path, size)
            self._session.flush()
            return row, self.allow(project, row, filename)
        if row.path in (None, lost):
            if row.path is not None:
                files.give_up(row.path)
            row.path = path
            files.name(path, size)
        else:
            files.give_up(path)
        row.uploaded_at = moment
        self._session.flush()
        return row, self.allow(project, row, filename)

    def uploaded_again(self, sha256: str, filename: str, project: str) -> tuple[Artifact, bool] | None:
        """Record another upload of the artifact, which protects it from deletion as unused. Returns the row, and
        whether it is new to the project; ``None`` if it was deleted."""
        row = self._session.get(Artifact, sha256, with_for_update=True, populate_existing=True)
        if row is None:
            return None
        row.uploaded_at = now()
        return row, self.allow(project, row, filename)

    def users(self, sha256: str, project: str | None = None) -> list[str]:
        """Names of some versions (of a project) that use the artifact, for messages."""
        query = (
            select(Application.name, Application.deleted_at, Version.number)
            .join(Application, Application.id == Version.application)
            .where(Version.artifact == sha256)
            .order_by(Application.deleted_at.is_not(None), Application.name, Version.number)
        )
        if project is not None:
            query = query.where(Application.project == project)
        found = self._session.execute(query.limit(_NAMED + 1)).all()
        return [
            f"version {user.number} of {local_name(user.name)!r}" + (" (deleted)" if user.deleted_at else "")
            for user in found[:_NAMED]
        ] + [".."] * (len(found) > _NAMED)

    def _delete(self, row: Artifact) -> str | None:
        if row.path is not None:
            StoreFiles(self._session).give_up(row.path)
        self._session.execute(delete(ProjectArtifact).where(ProjectArtifact.sha256 == row.sha256))
        self._session.delete(row)
        self._session.flush()
        return row.path


def artifact_answer(row: Artifact, known: ProjectArtifact) -> ArtifactAnswer:
    """The artifact with the file name and time of the project's own upload; other projects' are not disclosed."""
    return ArtifactAnswer(sha256=row.sha256, filename=known.filename, bytes=row.bytes, created_at=known.created_at)
