"""Exports: asked for, built in the background, fetched in parts, and gone after a week."""

from __future__ import annotations

from dataclasses import dataclass

from epochal.errors import Conflict, SnapshotExpired
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.models import Application, Epoch
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.runtime.operations import OperationWorker
from epochal.service.runtime.stored_files import StoredFiles, StoredParts
from epochal.wire.bundles import CreateExport, ExportArguments
from epochal.wire.operations import OperationAnswer


@dataclass(frozen=True)
class BundleFile:
    parts: StoredParts
    filename: str
    sha256: str


class ExportService:
    def __init__(self, database: Database, files: StoredFiles, worker: OperationWorker) -> None:
        self._database = database
        self._files = files
        self._worker = worker

    def export(self, name: str, request: CreateExport, by: str) -> OperationAnswer:
        """Raises ``NotFound``, ``SnapshotExpired``, ``InvalidInput`` when ``since`` is no ancestor, ``Conflict``."""

        def wish(session: Session) -> tuple[Application, ExportArguments]:
            application = ApplicationRepository(session).named(name)
            target = _target(session, application, request)
            since = (
                None
                if request.since is None
                else SnapshotRepository(session).ancestor(application, target, request.since)
            )
            return application, ExportArguments(
                branch=target.branch,
                epoch=target.epoch,
                since_branch=since.branch if since else None,
                since_epoch=since.epoch if since else None,
                message=request.message,
            )

        return self._worker.begin("export", by, wish)

    def file(self, name: str, id: str) -> BundleFile:
        """Raises ``NotFound``, ``Conflict`` while it is built, ``SnapshotExpired`` when it is gone."""
        with self._database.reading() as session:
            application = ApplicationRepository(session).named(name)
            row = OperationRepository(session).of(application, "export", id)
            if row.state != "succeeded" or row.result is None:
                raise Conflict(f"Export {id} is {row.state}; wait until it has succeeded.")
            filename, sha256, size = (row.result[name] for name in ("filename", "sha256", "bytes"))
        parts = self._files.parts("export", id)
        if parts.bytes != size:
            raise SnapshotExpired(f"The bundle of export {id} has expired; export the snapshot again.")
        return BundleFile(parts, str(filename), str(sha256))


def _target(session: Session, application: Application, request: CreateExport) -> Epoch:
    repository = SnapshotRepository(session)
    if (request.epoch, request.savepoint, request.tag) != (None, None, None):
        return repository.row(repository.resolve(application, request.epoch, request.savepoint, request.tag).key)
    head = repository.head(application)
    if head is None:
        raise Conflict(f"Application {application.name!r} has not committed an epoch yet; there is nothing to export.")
    return head
