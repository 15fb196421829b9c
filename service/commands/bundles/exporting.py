"""What an export does, once it was asked for: a bundle, built in one file, which then can be fetched in parts."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import epochal
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.faults import declare
from epochal.service.catalog.bundles import ExportedRows
from epochal.service.catalog.database import Database
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.records import key_of
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.types import now
from epochal.service.commands.bundles import folders
from epochal.service.domain.artifacts import artifact_path
from epochal.service.domain.settings import Settings
from epochal.snapshots.bundle_format import (
    BundleEpoch,
    BundleHeader,
    BundleOrigin,
)
from epochal.snapshots.bundle_writing import BundleFiles, encoded_epochs, files_of, write_bundle
from epochal.snapshots.store import SnapshotStore
from epochal.wire.bundles import ExportArguments, ExportResult

COLLECTED = declare("export.collected", "what belongs into the bundle is known, nothing is written")
WRITTEN = declare("export.written", "the bundle is written and durable, under its temporary name")
NAMED = declare("export.named", "the bundle has its name, its operation is not yet over")

KEPT = timedelta(days=7)
"""How long a bundle can be fetched."""


class Exporting:
    def __init__(self, settings: Settings, database: Database, store: SnapshotStore) -> None:
        self._settings = settings
        self._database = database
        self._store = store

    def run(self, claim: Claim, arguments: ExportArguments) -> ExportResult:
        """Raises ``FileMissing``, ``FileCorrupt``."""
        with self._database.reading() as session:
            row, name = OperationRepository(session).get(claim.id)
            assert name is not None  # an export is of an application
            asked_at, by = row.created_at, row.created_by
            snapshots = SnapshotRepository(session)
            snapshot = snapshots.reference(EpochKey(arguments.branch, arguments.epoch))
            since = key_of(arguments.since_branch, arguments.since_epoch)
            before = None if since is None else snapshots.reference(since)
        files = files_of(self._store, snapshot, before)
        with self._database.reading() as session:
            rows = ExportedRows(session)
            epochs = [rows.epoch(reference.key) for reference in files.manifests]
            origin = BundleOrigin(
                control_plane=folders.control_plane_id(self._settings),
                application=name,
                branch=snapshot.branch,
                epoch=snapshot.epoch,
                exported_at=asked_at,
                by=by,
                message=arguments.message,
            )
            header, artifacts = self._header(rows, origin, snapshot, before, files, epochs)
        COLLECTED.hit()
        path = folders.export_file(self._settings, claim.id)
        sha256, size = self._write(path, header, encoded_epochs(epochs), files, artifacts, claim)
        NAMED.hit()
        return ExportResult(
            branch=snapshot.branch,
            epoch=snapshot.epoch,
            since=None if before is None else before.key,
            filename=f"{name}-{snapshot.epoch}{folders.ENDING}",
            bytes=size,
            sha256=sha256,
            expires_at=_text(now() + KEPT),
        )

    def sweep(self, claim: Claim, arguments: ExportArguments) -> None:
        path = folders.export_file(self._settings, claim.id)
        for file in (path, _draft(path)):
            file.unlink(missing_ok=True)

    def _header(
        self,
        rows: ExportedRows,
        origin: BundleOrigin,
        snapshot: ManifestReference,
        since: ManifestReference | None,
        files: BundleFiles,
        epochs: list[BundleEpoch],
    ) -> tuple[BundleHeader, Mapping[str, Path]]:
        branches = rows.branches(_branches(files))
        versions = rows.versions(epochs)
        encoded = encoded_epochs(epochs)
        folder = self._settings.artifacts_directory
        paths = {each.artifact: artifact_path(folder, each.artifact, each.filename) for each in versions}
        size = sum(file.bytes for file in files.files) + sum(path.stat().st_size for path in paths.values())
        application, version = rows.maker(snapshot.key)
        header = BundleHeader(
            made_by=epochal.__version__,
            origin=origin.model_copy(update={"application": application}),
            snapshot=snapshot,
            since=since,
            version=version,
            applications=rows.names({branch.application for branch in branches}),
            versions=tuple(versions),
            branches=branches,
            epochs_sha256=hashlib.sha256(encoded).hexdigest(),
            members=len(paths) + len(files.manifests) + len(files.files),
            bytes=size + sum(self._store.size(reference.path) for reference in files.manifests),
        )
        return header, paths

    def _write(
        self,
        path: Path,
        header: BundleHeader,
        epochs: bytes,
        files: BundleFiles,
        artifacts: Mapping[str, Path],
        claim: Claim,
    ) -> tuple[str, int]:
        draft = _draft(path)
        with draft.open("wb") as file:
            target = _Hashing(file)
            for done in write_bundle(target, self._store, header, epochs, files, artifacts):
                claim.progress(f"{done} of {header.bytes} bytes")
            file.flush()
            os.fsync(file.fileno())
        WRITTEN.hit()
        draft.rename(path)
        return target.sha256, target.size


def _draft(path: Path) -> Path:
    return path.with_name(path.name + folders.UNFINISHED)


class _Hashing(io.RawIOBase, BinaryIO):
    """Passes writes on, and keeps their checksum."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._file.write(view)
        self.size += len(view)
        return len(view)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def _branches(files: BundleFiles) -> Iterable[str]:
    """Those of the manifests, and those below which some file lies."""
    ids = dict.fromkeys(reference.branch for reference in files.manifests)
    return ids | dict.fromkeys(file.path.partition("/")[0] for file in files.files)


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
