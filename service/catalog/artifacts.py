from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import NotFound
from epochal.service.catalog.models import Artifact
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.types import now
from epochal.service.domain.pages import PageRequest, Part


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

    def add(self, sha256: str, filename: str, size: int, by: str) -> Artifact:
        row = Artifact(sha256=sha256, filename=filename, bytes=size, created_at=now(), created_by=by)
        self._session.add(row)
        self._session.flush()
        return row
