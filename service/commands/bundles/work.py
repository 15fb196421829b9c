"""Exports and imports as verbs of the operation worker, and cleanup of their files."""

from __future__ import annotations

import shutil
import time
from typing import Any

from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.models import Operation
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.operation_completion import succeed
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.projects import RUNNING, ProjectRepository
from epochal.service.commands.applications import Lifecycle, announce_begun, start_operation
from epochal.service.commands.bundles.exports import Exporting
from epochal.service.commands.bundles.importing import Importing
from epochal.service.commands.bundles.uploads import KEPT, Uploads, uploads_folder
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.service.runtime.operations import OperationWorker, Verb
from epochal.service.runtime.stored_files import StoredFiles
from epochal.snapshots.lineage_bounds import LineageStore
from epochal.wire.bundles import ExportArguments, ImportArguments, ImportResult

LANE = "bundles"


class BundleWork:
    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: LineageStore,
        files: StoredFiles,
        code: ArtifactCache,
        uploads: Uploads,
        lifecycle: Lifecycle,
        worker: OperationWorker,
    ) -> None:
        self._settings = settings
        self._database = database
        self._files = files
        exporting = Exporting(database, store, files, code)
        self._importing = Importing(settings, database, store, files, uploads)
        self._uploads = uploads
        self._lifecycle = lifecycle
        verbs: list[Verb[Any]] = [
            Verb("export", ExportArguments, exporting.run, exporting.sweep),
            Verb("import", ImportArguments, self._import, self._importing.sweep),
        ]
        worker.register(LANE, verbs, self._tidy)

    def _import(self, claim: Claim, arguments: ImportArguments) -> None:
        executions: list[str] = []

        def finish(session: Session, operation: Operation, result: ImportResult) -> None:
            application = ApplicationRepository(session).named(arguments.name)
            if arguments.start:
                started = start_operation(session, application, operation.created_by)
                result = result.model_copy(update={"operation": started.id})
                announce_begun(session, application, started)
                executions.extend([started.execution] if started.execution else [])
                ProjectRepository(session).check_room(operation.project, RUNNING)
            succeed(session, application, operation, result.model_dump(mode="json"))

        self._importing.run(claim, arguments, finish)
        self._lifecycle.wake(executions[0] if executions else None)

    def _tidy(self) -> None:
        """Delete expired files of the store, and unused copies of bundles in this control plane's folder."""
        with self._database.reading() as session:
            busy = {row.arguments.get("upload") for row in OperationRepository(session).running("import")}
        self._uploads.expire(lambda upload: upload in busy)
        self._files.sweep()
        oldest = time.time() - KEPT.total_seconds()
        for path in uploads_folder(self._settings).iterdir():
            if path.name.lstrip(".").partition(".")[0] in busy or path.stat().st_mtime >= oldest:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
