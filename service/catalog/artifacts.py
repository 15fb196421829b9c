from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from epochal.errors import Conflict, NotFound
from epochal.service.catalog.models import Application, Artifact, Version
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.store_files import StoreFiles
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

    def delete(self, sha256: str) -> str | None:
        """Nobody finds it from this transaction on, and its file is given up: the path, ``None`` when there is none.

        Raises ``Conflict`` while a version names it. Versions of deleted applications count: forks stand on their
        snapshots, whose code they say.
        """
        row = self._session.get(Artifact, sha256, with_for_update=True, populate_existing=True)
        if row is None:
            return None
        users = self.users(sha256)
        if users:
            raise Conflict(
                f"Artifact {sha256} is the code of {', '.join(users)}: history, rollbacks and forks need it."
            )
        return self._delete(row)

    def delete_unused(self, uploaded_before: datetime, most: int) -> Sequence[str]:
        """Those that no version is made of and nobody has uploaded since, as :meth:`delete` does; their sha256."""
        uploaded_at = func.coalesce(Artifact.uploaded_at, Artifact.created_at)
        is_used = exists().where(Version.artifact == Artifact.sha256)
        unused = select(Artifact).where(uploaded_at < uploaded_before, ~is_used, Artifact.path.is_not(None))
        deleted = []
        for row in self._session.scalars(unused.limit(most).with_for_update(skip_locked=True)).all():
            if not self.users(row.sha256):  # by now, under the row's lock
                self._delete(row)
                deleted.append(row.sha256)
        return deleted

    def register(
        self, sha256: str, filename: str, size: int, by: str, path: str, lost: str | None
    ) -> tuple[Artifact, bool]:
        """Make the file at ``path`` the artifact's, and whether the artifact is new.

        ``lost``: the path of its file that is not there any more. Where somebody else was quicker, and it has another
        one, ``path`` is given up.
        """
        files, moment = StoreFiles(self._session), now()
        row = self._session.get(Artifact, sha256, with_for_update=True, populate_existing=True)
        new = row is None
        if row is None:
            row = Artifact(sha256=sha256, filename=filename, bytes=size, created_at=moment, created_by=by, path=path)
            self._session.add(row)
            files.name(path, size)
        elif row.path in (None, lost):
            if row.path is not None:
                files.give_up(row.path)
            row.path = path
            files.name(path, size)
        else:
            files.give_up(path)
        row.uploaded_at = moment
        self._session.flush()
        return row, new

    def uploaded_again(self, sha256: str) -> Artifact | None:
        """Somebody is about to make something of it: it is not unused. ``None`` when it was deleted meanwhile."""
        row = self._session.get(Artifact, sha256, with_for_update=True, populate_existing=True)
        if row is not None:
            row.uploaded_at = now()
        return row

    def without_file(self) -> Sequence[Artifact]:
        """Those whose bytes a control plane of an earlier version has in its data folder."""
        query = select(Artifact).where(Artifact.path.is_(None), Artifact.bytes > 0)
        return self._session.scalars(query.order_by(Artifact.created_at)).all()

    def users(self, sha256: str) -> list[str]:
        """Versions that are made of it, for people; some of them where there are many."""
        query = (
            select(Application.name, Application.deleted_at, Version.number)
            .join(Application, Application.id == Version.application)
            .where(Version.artifact == sha256)
            .order_by(Application.deleted_at.is_not(None), Application.name, Version.number)
        )
        found = self._session.execute(query.limit(_NAMED + 1)).all()
        return [
            f"version {user.number} of {user.name!r}" + (" (deleted)" if user.deleted_at else "")
            for user in found[:_NAMED]
        ] + [".."] * (len(found) > _NAMED)

    def _delete(self, row: Artifact) -> str | None:
        if row.path is not None:
            StoreFiles(self._session).give_up(row.path)
        self._session.delete(row)
        self._session.flush()
        return row.path


def artifact_answer(row: Artifact) -> ArtifactAnswer:
    return ArtifactAnswer(sha256=row.sha256, filename=row.filename, bytes=row.bytes, created_at=row.created_at)
