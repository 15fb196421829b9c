"""Savepoints."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.declarations.names import alternatives
from epochal.errors import Conflict, NameTaken, NotFound
from epochal.service.catalog.models import Application, Epoch, Savepoint
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.records import manifest_of
from epochal.service.domain.pages import PageRequest, Part
from epochal.wire.snapshots import SavepointAnswer, SavepointManifest


@dataclass(frozen=True)
class SavepointRow:
    """A savepoint and its manifest."""

    row: Savepoint
    manifest: ManifestReference

    @property
    def key(self) -> EpochKey:
        return self.manifest.key


class SavepointRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, application: Application, name: str) -> SavepointRow:
        row = self._session.get(Savepoint, (application.id, name))
        if row is None:
            known = self._session.scalars(select(Savepoint.name).where(Savepoint.application == application.id))
            raise NotFound(f"Application {application.name!r} has no savepoint {name!r}.{alternatives(name, known)}")
        return self._with_manifest(row)

    def check_free(self, application: Application, name: str) -> None:
        """Raises ``NameTaken``."""
        if self._session.get(Savepoint, (application.id, name)) is not None:
            raise NameTaken(f"Application {application.name!r} already has a savepoint {name!r}; choose another name.")

    def page(self, application: Application, page: PageRequest) -> Part:
        """Ordered by name."""
        query = select(Savepoint).where(Savepoint.application == application.id)
        part = paginate(self._session, query, page, [Savepoint.name])
        return Part([self._with_manifest(row) for row in part.rows], part.next_cursor)

    def delete(self, savepoint: SavepointRow) -> None:
        self._session.delete(savepoint.row)

    def _with_manifest(self, row: Savepoint) -> SavepointRow:
        manifest = manifest_of(self._session.get_one(Epoch, (row.branch, row.epoch)))
        if manifest is None:
            raise Conflict(f"Savepoint {row.name!r} has no manifest in the catalog.")
        return SavepointRow(row, manifest)


def savepoint_answer(item: SavepointRow) -> SavepointAnswer:
    return SavepointAnswer(
        name=item.row.name,
        branch=item.row.branch,
        epoch=item.row.epoch,
        manifest=SavepointManifest(path=item.manifest.path, sha256=item.manifest.sha256),
        message=item.row.message,
        created_at=item.row.created_at,
        created_by=item.row.created_by,
    )
