"""Snapshots: resolution of names (SQL only), and manifests (from the store)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from epochal.contracts.catalog import EpochRecord, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.service.catalog.annotations import AnnotationRepository
from epochal.service.catalog.application_heads import heads
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.lineage import SNAPSHOTS, LineageRepository
from epochal.service.catalog.records import epoch_record
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.domain.pages import PageRequest
from epochal.service.domain.snapshots import ApplicationHead, SnapshotOrigin, expiring
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.wire.projects import local_name
from epochal.wire.snapshots import Annotations, EpochPage, FoldedRange, KeyGroupSizes, SnapshotAnswer

MOST_SIZED_FILES = 2_000
"""Maximum number of files of which one request reads the footers."""


class SnapshotDirectory:
    """Implements :class:`epochal.service.domain.snapshots.Snapshots`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def heads(self) -> Sequence[ApplicationHead]:
        with self._database.reading() as session:
            return heads(session)

    def head(self, application: str) -> ApplicationHead:
        with self._database.reading() as session:
            found = heads(session, application)
            if not found:
                ApplicationRepository(session).named(application)  # its message lists the existing ones
            return found[0]

    def resolve(
        self,
        application: str,
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
    ) -> ManifestReference:
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            return SnapshotRepository(session).resolve(row, epoch, savepoint, tag, at)

    def expired(self, key: EpochKey) -> datetime | None:
        with self._database.reading() as session:
            row = SnapshotRepository(session).find(key)
            return None if row is None else row.collected_at

    def origins(self, keys: Collection[EpochKey]) -> Mapping[EpochKey, SnapshotOrigin]:
        with self._database.reading() as session:
            return LineageRepository(session).origins(keys)

    def reference(self, application: str, key: EpochKey) -> ManifestReference:
        with self._database.reading() as session:
            return SnapshotRepository(session).of_application(application, key)

    def record(self, application: str, epoch: int) -> EpochRecord:
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            return epoch_record(SnapshotRepository(session).epoch(row, epoch))


class SnapshotService:
    """Read side of snapshots."""

    def __init__(self, database: Database, directory: SnapshotDirectory, store: SnapshotStore) -> None:
        self._database = database
        self._directory = directory
        self._store = store

    def page(self, application: str, page: PageRequest) -> EpochPage:
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            repository = SnapshotRepository(session)
            part = repository.page(row, page, SNAPSHOTS)
            return EpochPage(
                items=[epoch_record(item) for item in part.rows],
                next_cursor=part.next_cursor,
                folded=[
                    FoldedRange.model_validate(range, from_attributes=True)
                    for range in repository.folded(row, part, page, SNAPSHOTS)
                ],
            )

    def key_groups(self, application: str, name: str, table: str) -> KeyGroupSizes:
        """Raises ``NotFound``, also for a table that is not durable, and as :meth:`get`."""
        with self._database.reading() as session:
            reference = SnapshotRepository(session).named(application, name)
        with expiring(self._directory, reference.key):
            reader = SnapshotReader(self._store, reference)
            declared, sizes = reader.table(table), reader.sizes(table, MOST_SIZED_FILES)
        return KeyGroupSizes(
            table=table,
            operator=declared.operator,
            branch=reference.branch,
            epoch=reference.epoch,
            parallelism=reader.manifest.parallelism_of(declared.operator),
            rows=sizes.groups.rows.tolist(),
            bytes=sizes.groups.bytes.tolist(),
            files=sizes.files,
            files_read=sizes.read,
        )

    def get(self, application: str, name: str) -> SnapshotAnswer:
        """Raises ``NotFound``, ``SnapshotExpired``; ``FileMissing``, ``FileCorrupt`` for a damaged store."""
        with self._database.reading() as session:
            reference = SnapshotRepository(session).named(application, name)
            annotations = AnnotationRepository(session).of([reference.key]).get(reference.key, Annotations())
        with expiring(self._directory, reference.key):
            manifest = self._store.read_manifest(reference)
        said = manifest.model_dump(mode="json") | {"application": local_name(manifest.application)}
        return SnapshotAnswer(**said, reference=reference, annotations=annotations)
