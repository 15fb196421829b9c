"""Uploads of bundles."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import NotFound
from epochal.service.catalog.models import Upload
from epochal.service.catalog.store_files import StoreFiles
from epochal.service.catalog.types import database_now, now
from epochal.service.domain.identifiers import new_id


class UploadRepository:
    """``kept``: time after which an upload without progress expires."""

    def __init__(self, session: Session, kept: timedelta) -> None:
        self._session = session
        self._kept = kept

    def create(self, sha256: str, size: int, project: str, by: str) -> Upload:
        """Begin an upload. An unfinished upload of the same bundle by the same caller is continued."""
        query = select(Upload).where(
            Upload.sha256 == sha256, Upload.bytes == size, Upload.created_by == by, Upload.project == project
        )
        row = self._session.scalars(query.order_by(Upload.id).with_for_update()).first()
        if row is None:
            row = Upload(
                id=new_id(),
                project=project,
                sha256=sha256,
                bytes=size,
                received=0,
                created_at=now(),
                created_by=by,
                expires_at=self._expiry(),
            )
            self._session.add(row)
        row.expires_at = self._expiry()
        self._session.flush()
        return row

    def get(self, id: str, project: str | None = None, lock: bool = False) -> Upload:
        """Raises ``NotFound``, also for uploads of another project than ``project``."""
        row = self._session.get(Upload, id, with_for_update=lock, populate_existing=lock)
        if row is None or project not in (None, row.project):
            raise NotFound(f"There is no import {id!r}.")
        return row

    def find(self, id: str) -> Upload | None:
        return self._session.get(Upload, id)

    def all(self, project: str) -> Sequence[Upload]:
        """Listed oldest first."""
        return self._session.scalars(select(Upload).where(Upload.project == project).order_by(Upload.id)).all()

    def expired(self) -> Sequence[str]:
        return self._session.scalars(select(Upload.id).where(Upload.expires_at <= database_now(self._session))).all()

    def append(self, row: Upload, path: str, size: int) -> None:
        """Add the next part, at ``path``. Raises ``Conflict`` if the file has expired."""
        StoreFiles(self._session).name(path, size)
        row.received += size
        row.expires_at = self._expiry()

    def begin_again(self, row: Upload) -> None:
        """Discard the parts received so far."""
        StoreFiles(self._session).give_up_all("upload", row.id)
        row.received = 0

    def remove(self, id: str) -> None:
        """Delete the upload with its parts. Idempotent."""
        StoreFiles(self._session).give_up_all("upload", id)
        row = self._session.get(Upload, id, with_for_update=True)
        if row is not None:
            self._session.delete(row)

    def _expiry(self) -> datetime:
        return database_now(self._session) + self._kept
