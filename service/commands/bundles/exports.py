"""Exports: bundles that are built in the background, downloaded in parts, and deleted after a week."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import epochal
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import Conflict, SnapshotExpired
from epochal.faults import declare
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.bundles import ExportedRows
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.installations import InstallationRepository
from epochal.service.catalog.models import Application, Epoch
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.records import key_of
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.types import now
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands.bundles.uploads import ENDING
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.service.runtime.operations import OperationWorker
from epochal.service.runtime.stored_files import PartedFile, StoredFiles, StoredParts
from epochal.snapshots import layout
from epochal.snapshots.bundle_format import (
    BundleEpoch,
    BundleHeader,
    BundleOrigin,
)
from epochal.snapshots.bundle_writing import BundleFiles, encoded_epochs, files_of, write_bundle
from epochal.snapshots.store import SnapshotStore
from epochal.wire.bundles import CreateExport, ExportArguments, ExportResult
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
        """Raises ``NotFound``, ``SnapshotExpired``, ``InvalidInput`` if ``since`` is not an ancestor, ``Conflict``."""

        def record(session: Session) -> tuple[Application, ExportArguments]:
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

        return self._worker.begin("export", by, record)

    def file(self, name: str, id: str) -> BundleFile:
        """Raises ``NotFound``, ``Conflict`` while it is built, ``SnapshotExpired`` after its expiry."""
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


COLLECTED = declare("export.collected", "the bundle's contents are determined, nothing is written")
WRITTEN = declare("export.written", "the bundle is written and durable, nothing refers to it")
NAMED = declare("export.named", "the bundle can be downloaded, its operation still runs")

KEPT = timedelta(days=7)
"""Retention time of a bundle."""


class Exporting:
    def __init__(self, database: Database, store: SnapshotStore, files: StoredFiles, code: ArtifactCache) -> None:
        self._database = database
        self._store = store
        self._files = files
        self._code = code

    def run(self, claim: Claim, arguments: ExportArguments) -> ExportResult:
        """Raises ``FileMissing``, ``FileCorrupt``."""
        with self._database.reading() as session:
            row, name = OperationRepository(session).get(claim.id, None)
            assert name is not None  # an export always has an application
            asked_at, by = row.created_at, row.created_by
            snapshots, here = SnapshotRepository(session), InstallationRepository(session).find()
            installation = "" if here is None else here.id
            snapshot = snapshots.reference(EpochKey(arguments.branch, arguments.epoch))
            since = key_of(arguments.since_branch, arguments.since_epoch)
            before = None if since is None else snapshots.reference(since)
        files = files_of(self._store, snapshot, before)
        artifacts = self._artifacts(files)
        size = files.size(self._store) + sum(path.stat().st_size for path in artifacts.values())
        with self._database.reading() as session:
            rows = ExportedRows(session)
            epochs = [rows.epoch(reference.key) for reference in files.manifests]
            origin = BundleOrigin(
                control_plane=installation,
                application=name,
                branch=snapshot.branch,
                epoch=snapshot.epoch,
                exported_at=asked_at,
                by=by,
                message=arguments.message,
            )
            header = self._header(rows, origin, snapshot, files, epochs, len(artifacts), size)
        COLLECTED.hit()
        sha256, size = self._write(header, encoded_epochs(epochs), files, artifacts, claim)
        NAMED.hit()
        return ExportResult(
            branch=snapshot.branch,
            epoch=snapshot.epoch,
            since=None if files.since is None else files.since.key,
            filename=f"{name}-{snapshot.epoch}{ENDING}",
            bytes=size,
            sha256=sha256,
            expires_at=_text(now() + KEPT),
            left_out=tuple(table.id for table in self._store.read_manifest(snapshot).tables if not table.durable),
        )

    def sweep(self, claim: Claim, arguments: ExportArguments) -> None:
        self._files.delete_all("export", claim.id)

    def _artifacts(self, files: BundleFiles) -> Mapping[str, Path]:
        """Code of the versions that ran the bundle's epochs, by its sha256."""
        with self._database.reading() as session:
            rows, versions = ExportedRows(session), VersionRepository(session)
            used = rows.versions([rows.epoch(reference.key) for reference in files.manifests])
            artifacts = [versions.artifact(sha256) for sha256 in dict.fromkeys(each.artifact for each in used)]
        return {artifact.sha256: self._code.file(artifact) for artifact in artifacts}

    def _header(
        self,
        rows: ExportedRows,
        origin: BundleOrigin,
        snapshot: ManifestReference,
        files: BundleFiles,
        epochs: list[BundleEpoch],
        artifacts: int,
        size: int,
    ) -> BundleHeader:
        """``artifacts``: their number; ``size``: size of all members, in bytes."""
        branches = rows.branches(snapshot.key, _branches(files))
        versions = rows.versions(epochs)
        encoded = encoded_epochs(epochs)
        application, version = rows.maker(snapshot.key)
        return BundleHeader(
            made_by=epochal.__version__,
            origin=origin.model_copy(update={"application": application}),
            snapshot=snapshot,
            since=files.since,
            version=version,
            applications=rows.names({branch.application for branch in branches}),
            versions=tuple(versions),
            branches=branches,
            packs=files.checksums_of_packs,
            epochs_sha256=hashlib.sha256(encoded).hexdigest(),
            members=artifacts + files.members,
            bytes=size,
        )

    def _write(
        self,
        header: BundleHeader,
        epochs: bytes,
        files: BundleFiles,
        artifacts: Mapping[str, Path],
        claim: Claim,
    ) -> tuple[str, int]:
        self._files.delete_all("export", claim.id)  # of a killed attempt
        target = PartedFile(self._files, "export", claim.id, lambda at: layout.part_of_export(claim.id, at))
        for done in write_bundle(target, self._store, header, epochs, files, artifacts):
            claim.progress(f"{done} of {header.bytes} bytes")
        target.finish()
        WRITTEN.hit()
        with self._database.writing() as session:
            claim.decide(session)
            target.name(session, KEPT)
        return target.sha256, target.size


def _branches(files: BundleFiles) -> set[str]:
    """Branches of the manifests, and branches that contain the files."""
    paths = (*files.packs, *(file.path for file in files.files))
    return {reference.branch for reference in files.manifests} | {path.partition("/")[0] for path in paths}


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
