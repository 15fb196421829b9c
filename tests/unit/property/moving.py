"""Exports and imports between two worlds through a control plane's services; no code is built."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing
from epochal.pipeline.description import GraphDescription
from epochal.service.catalog.models import Operation
from epochal.service.commands.applications import Lifecycle
from epochal.service.commands.bundles.exports import ExportService
from epochal.service.commands.bundles.imports import ImportService
from epochal.service.commands.bundles.uploads import Uploads
from epochal.service.commands.bundles.work import LANE, BundleWork
from epochal.service.domain.ports import SpareFigures
from epochal.service.runtime.operations import OperationWorker
from epochal.snapshots.bundle_reading import BundleLimits, BundleReader
from epochal.wire.bundles import CreateExport, CreateImport, ImportApplication
from epochal.wire.operations import OperationAnswer
from tests.unit.property.retention_model import App
from tests.unit.property.retention_world import World

LIMITS = BundleLimits(artifact=1 << 20, all=1 << 30)


class Mover:
    """Bundle services of one world's control plane. The next call continues a killed operation."""

    def __init__(self, world: World) -> None:
        settings, database, store = world.settings, world.database, world.store
        self.world = world
        self._uploads = Uploads(settings, database, world.files)
        lifecycle = Lifecycle(database, _NoDrivers())  # type: ignore[arg-type]
        self._worker = OperationWorker(database)
        BundleWork(settings, database, store, world.files, world.code, self._uploads, lifecycle, self._worker)
        self._exports = ExportService(database, world.files, self._worker)
        self._imports = ImportService(
            settings,
            database,
            store,
            _Builder(),  # type: ignore[arg-type]
            world.code,
            self._uploads,
            self._worker,
        )

    def request_export(self, app: App, key: EpochKey, since: EpochKey | None) -> OperationAnswer:
        request = CreateExport(epoch=key.epoch, since=None if since is None else since.epoch)
        return self._exports.export(app.name, request, "me")

    def work_off(self) -> None:
        self._worker.work_off(LANE)

    def bundle(self, export: OperationAnswer) -> Path:
        """The bundle of a completed export."""
        assert self.result(export)
        parts = self.world.files.parts("export", export.id)
        file = self.world.settings.data / f"{export.id}.epochal"
        file.write_bytes(b"".join(parts.read(0, parts.bytes)))
        return file

    def request_import(self, bundle: Path, name: str, project: str = "default") -> OperationAnswer:
        """Raises ``Conflict`` if the name is taken by another branch, or the base of an increment is missing."""
        data = bundle.read_bytes()
        upload = self._imports.create(
            CreateImport(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data)), project, "me"
        )
        self._imports.append(upload.id, project, upload.received, data[upload.received :])
        return self._imports.make(upload.id, project, ImportApplication(name=name), "me")

    def imported(self, operation: OperationAnswer, bundle: Path, source: World) -> App:
        """Updates the model after a completed import."""
        model, result = self.world.model, self.result(operation)
        with tempfile.TemporaryDirectory() as folder, BundleReader(bundle, Path(folder), LIMITS) as reader:
            header, epochs = reader.header, list(reader.epochs())
        for branch in header.branches:
            model.parents.setdefault(branch.id, branch.parent)
            model.retains.setdefault(branch.id, source.model.retains[branch.id])
        needed = set(source.needed(header.snapshot.key))
        for key in (epoch.key for epoch in reversed(epochs)):
            if key not in model.references:
                model.references[key], model.expected[key] = source.model.references[key], source.model.expected[key]
                model.committed.append(key)
                if not _is_complete(source, key, needed):
                    model.may_be_collected.add(key)  # included only as the base of later ones
        branch_id, retained = str(result["branch"]), source.model.retains[header.snapshot.branch]
        table = source.store.read_manifest(header.snapshot).tables[0]
        return model.add(App(str(result["application"]), retained, [branch_id], table), header.snapshot.key)

    def result(self, operation: OperationAnswer) -> Mapping[str, Any]:
        with self.world.database.reading() as session:
            row = session.get_one(Operation, operation.id)
            assert row.state == "succeeded", row.error
            return dict(row.result or {})


class _Builder:
    def describe(
        self, project: str, artifact: Path, parameters: Mapping[str, Any], configuration: object = None
    ) -> GraphDescription:
        return GraphDescription(name="counts", nodes=(), sinks={})


class _NoDrivers:
    """Supervision without drivers."""

    spares = SpareFigures()

    def bring_log(self, process: str) -> None: ...

    def wake(self, execution: str | None = None) -> None:
        pass


def _is_complete(source: World, key: EpochKey, arrived: set[str]) -> bool:
    try:
        return arrived >= set(source.needed(key))
    except FileMissing:
        return False
