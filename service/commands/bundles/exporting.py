"""What an export does, once it was asked for: a bundle in the store, which then can be fetched in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import epochal
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.faults import declare
from epochal.service.catalog.bundles import ExportedRows
from epochal.service.catalog.database import Database
from epochal.service.catalog.installations import InstallationRepository
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.records import key_of
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.types import now
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands.bundles import folders
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.service.runtime.stored_files import PartedFile, StoredFiles
from epochal.snapshots import layout
from epochal.snapshots.bundle_format import (
    BundleEpoch,
    BundleHeader,
    BundleOrigin,
)
from epochal.snapshots.bundle_writing import BundleFiles, encoded_epochs, files_of, write_bundle
from epochal.snapshots.store import SnapshotStore
from epochal.wire.bundles import ExportArguments, ExportResult

COLLECTED = declare("export.collected", "what belongs into the bundle is known, nothing is written")
WRITTEN = declare("export.written", "the bundle is written and durable, nothing names it")
NAMED = declare("export.named", "the bundle can be fetched, its operation is not yet over")

KEPT = timedelta(days=7)
"""How long a bundle can be fetched."""


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
            assert name is not None  # an export is of an application
            asked_at, by = row.created_at, row.created_by
            snapshots, here = SnapshotRepository(session), InstallationRepository(session).find()
            installation = "" if here is None else here.id
            snapshot = snapshots.reference(EpochKey(arguments.branch, arguments.epoch))
            since = key_of(arguments.since_branch, arguments.since_epoch)
            before = None if since is None else snapshots.reference(since)
        files = files_of(self._store, snapshot, before)
        artifacts = self._artifacts(files)
        size = sum(file.bytes for file in files.files) + sum(path.stat().st_size for path in artifacts.values())
        size += sum(self._store.size(reference.path) for reference in files.manifests)
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
            header = self._header(rows, origin, snapshot, before, files, epochs, len(artifacts), size)
        COLLECTED.hit()
        sha256, size = self._write(header, encoded_epochs(epochs), files, artifacts, claim)
        NAMED.hit()
        return ExportResult(
            branch=snapshot.branch,
            epoch=snapshot.epoch,
            since=None if before is None else before.key,
            filename=f"{name}-{snapshot.epoch}{folders.ENDING}",
            bytes=size,
            sha256=sha256,
            expires_at=_text(now() + KEPT),
            left_out=tuple(table.id for table in self._store.read_manifest(snapshot).tables if not table.durable),
        )

    def sweep(self, claim: Claim, arguments: ExportArguments) -> None:
        self._files.delete_all("export", claim.id)

    def _artifacts(self, files: BundleFiles) -> Mapping[str, Path]:
        """The code of the versions that ran the bundle's epochs, by its sha256."""
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
        since: ManifestReference | None,
        files: BundleFiles,
        epochs: list[BundleEpoch],
        artifacts: int,
        size: int,
    ) -> BundleHeader:
        """``artifacts``: how many; ``size``: of all members, in bytes."""
        branches = rows.branches(_branches(files))
        versions = rows.versions(epochs)
        encoded = encoded_epochs(epochs)
        application, version = rows.maker(snapshot.key)
        return BundleHeader(
            made_by=epochal.__version__,
            origin=origin.model_copy(update={"application": application}),
            snapshot=snapshot,
            since=since,
            version=version,
            applications=rows.names({branch.application for branch in branches}),
            versions=tuple(versions),
            branches=branches,
            epochs_sha256=hashlib.sha256(encoded).hexdigest(),
            members=artifacts + len(files.manifests) + len(files.files),
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
        self._files.delete_all("export", claim.id)  # of a try that was killed
        target = PartedFile(self._files, "export", claim.id, lambda at: layout.part_of_export(claim.id, at))
        for done in write_bundle(target, self._store, header, epochs, files, artifacts):
            claim.progress(f"{done} of {header.bytes} bytes")
        target.finish()
        WRITTEN.hit()
        with self._database.writing() as session:
            claim.decide(session)
            target.name(session, KEPT)
        return target.sha256, target.size


def _branches(files: BundleFiles) -> Iterable[str]:
    """Those of the manifests, and those below which some file lies."""
    ids = dict.fromkeys(reference.branch for reference in files.manifests)
    return ids | dict.fromkeys(file.path.partition("/")[0] for file in files.files)


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
