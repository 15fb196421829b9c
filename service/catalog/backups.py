"""What a backup has to know of the catalog, all of it from the one moment of its session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import Conflict
from epochal.service.catalog import dumps
from epochal.service.catalog.collections import RetentionRepository
from epochal.service.catalog.installations import InstallationRepository
from epochal.service.catalog.models import Application, Artifact, Branch, Epoch
from epochal.service.catalog.store_files import StoreFiles
from epochal.service.catalog.types import now
from epochal.snapshots.backup_format import BackedUpApplication, ColumnKind


@dataclass(frozen=True)
class BackedUpArtifact:
    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class BackedUp:
    """``kept``: snapshots whose files the backup has to have. ``prepared``: of these epochs some sink may not have
    applied its write-ahead log yet. ``artifacts``: those that lie in the store."""

    installation: str
    incarnation: str
    kept: Mapping[EpochKey, ManifestReference]
    prepared: Sequence[EpochKey]
    artifacts: Sequence[BackedUpArtifact]
    logs: Sequence[str]
    """Paths of drivers' logs that lie in the store."""
    applications: tuple[BackedUpApplication, ...]


@dataclass(frozen=True)
class DumpedTable:
    name: str
    columns: dict[str, ColumnKind]
    rows: Iterator[dict[str, Any]]


class BackupRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def described(self) -> BackedUp:
        """Raises ``Conflict`` before the first start has said what the catalog is."""
        row = InstallationRepository(self._session).find()
        if row is None:
            raise Conflict("The catalog was never started with a store; there is nothing to back up.")
        prepared = select(Epoch.branch, Epoch.epoch).where(Epoch.state == State.PREPARED.value)
        standing = (
            select(Application.name, Application.branch, Branch.head_epoch)
            .join(Branch, Branch.id == Application.branch)
            .where(Application.deleted_at.is_(None))
            .order_by(Application.name)
        )
        artifacts = self._session.scalars(select(Artifact).order_by(Artifact.sha256)).all()
        return BackedUp(
            installation=row.id,
            incarnation=row.incarnation,
            kept=RetentionRepository(self._session).known(now()).kept,
            prepared=[EpochKey(branch, epoch) for branch, epoch in self._session.execute(prepared)],
            artifacts=[BackedUpArtifact(row.path, row.sha256, row.bytes) for row in artifacts if row.path is not None],
            logs=StoreFiles(self._session).named("log"),
            applications=tuple(
                BackedUpApplication(name=name, branch=branch, epoch=epoch)
                for name, branch, epoch in self._session.execute(standing)
            ),
        )

    def tables(self, kept: Mapping[EpochKey, ManifestReference], moment: datetime) -> Iterator[DumpedTable]:
        """To be read one after the other. Snapshots that are not kept are dumped as collected."""
        for table in dumps.tables():
            rows = dumps.rows(self._session, table)
            if table is Epoch.__table__:
                rows = dumps.as_collected(rows, kept, moment)
            yield DumpedTable(table.name, dumps.kinds_of(table), rows)
