"""Identity of the catalog: the row of the installation, and the key of cursors."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.engine.epoch import State
from epochal.errors import CatalogUnavailable
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Epoch, Installation
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id

_ROW = 1
_KEY_BYTES = 32


class InstallationRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self) -> Installation | None:
        """``None`` before the first start."""
        return self._session.get(Installation, _ROW)

    def ensure(self, oldest_reader: str | None = None) -> Installation:
        """The row, created if missing, and locked until the transaction ends. ``oldest_reader`` is for a new row."""
        row = self._session.get(Installation, _ROW, with_for_update=True, populate_existing=True)
        if row is None:
            row = Installation(number=_ROW, id=new_id(), incarnation=new_id(), created_at=now())
            row.oldest_reader = oldest_reader
            self._session.add(row)
            self._session.flush()
        if row.cursor_key is None:
            self.new_cursor_key(row)
        return row

    def new_cursor_key(self, row: Installation) -> None:
        """Replace the key. Cursors that were signed with the previous key are refused."""
        row.cursor_key = secrets.token_bytes(_KEY_BYTES)
        self._session.flush()

    def newest_snapshots(self, most: int) -> Sequence[ManifestReference]:
        """The latest decided snapshots that are not collected. The store of this catalog contains them."""
        query = (
            select(Epoch.branch, Epoch.epoch, Epoch.manifest_path, Epoch.manifest_sha256)
            .where(Epoch.state.in_([State.PREPARED.value, State.COMMITTED.value]), Epoch.collected_at.is_(None))
            .order_by(Epoch.prepared_at.desc())
            .limit(most)
        )
        return [
            ManifestReference(branch=branch, epoch=epoch, path=path, sha256=sha256)
            for branch, epoch, path, sha256 in self._session.execute(query)
        ]


class CursorKey:
    """The secret that signs cursors, read once. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key: bytes | None = None

    def get(self) -> bytes:
        """Raises ``CatalogUnavailable``, also before the first start of a control plane."""
        if self._key is None:
            with self._database.reading() as session:
                row = InstallationRepository(session).find()
                self._key = None if row is None else row.cursor_key
        if self._key is None:
            raise CatalogUnavailable("The catalog has no key for cursors. Start a control plane on it.")
        return self._key
