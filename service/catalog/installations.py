"""What this catalog is, and what it knows of its store."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.engine.epoch import State
from epochal.service.catalog.models import Epoch, Installation
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id

_ROW = 1


class InstallationRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self) -> Installation | None:
        """``None`` before the first start."""
        return self._session.get(Installation, _ROW)

    def ensure(self, oldest_reader: str | None = None) -> Installation:
        """Made where there is none, by one at a time; locked until the transaction ends. ``oldest_reader``: of the
        tables that are there."""
        row = self._session.get(Installation, _ROW, with_for_update=True, populate_existing=True)
        if row is None:
            row = Installation(number=_ROW, id=new_id(), incarnation=new_id(), created_at=now())
            row.oldest_reader = oldest_reader
            self._session.add(row)
            self._session.flush()
        return row

    def newest_snapshots(self, most: int) -> Sequence[ManifestReference]:
        """Those that were decided last and are not collected: the store has them, if it is this catalog's."""
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
