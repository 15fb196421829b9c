from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import Conflict, NotFound
from epochal.service.catalog.models import Application, Artifact, Version
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.types import now
from epochal.service.domain.pages import PageRequest, Part
from epochal.wire.artifacts import ArtifactAnswer

_NAMED = 5
"""So many versions are named where an artifact cannot be deleted."""


class ArtifactRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self, sha256: str) -> Artifact | None:
        return self._session.get(Artifact, sha256)

    def get(self, sha256: str) -> Artifact:
        row = self.find(sha256)
        if row is None:
            raise NotFound(f"There is no artifact {sha256!r}.")
        return row

    def page(self, page: PageRequest) -> Part:
        """Newest first."""
        return paginate(self._session, select(Artifact), page, [Artifact.created_at, Artifact.sha256], descending=True)

    def delete(self, sha256: str) -> Artifact | None:
        """The row that is no more, ``None`` when there was none. Raises ``Conflict`` while a version names it.

        Versions of deleted applications count: forks stand on their snapshots, whose code they say.
        """
        row = self._session.get(Artifact, sha256, with_for_update=True)
        if row is None:
            return None
        query = (
            select(Application.name, Application.deleted_at, Version.number)
            .join(Application, Application.id == Version.application)
            .where(Version.artifact == sha256)
            .order_by(Application.deleted_at.is_not(None), Application.name, Version.number)
        )
        users = self._session.execute(query.limit(_NAMED + 1)).all()
        if users:
            named = [
                f"version {user.number} of {user.name!r}" + (" (deleted)" if user.deleted_at else "")
                for user in users[:_NAMED]
            ] + [".."] * (len(users) > _NAMED)
            raise Conflict(
                f"Artifact {sha256} is the code of {', '.join(named)}: history, rollbacks and forks need it."
            )
        self._session.delete(row)
        self._session.flush()
        return row

    def add(self, sha256: str, filename: str, size: int, by: str) -> Artifact:
        row = Artifact(sha256=sha256, filename=filename, bytes=size, created_at=now(), created_by=by)
        self._session.add(row)
        self._session.flush()
        return row


def artifact_answer(row: Artifact) -> ArtifactAnswer:
    return ArtifactAnswer(sha256=row.sha256, filename=row.filename, bytes=row.bytes, created_at=row.created_at)
