"""Exports and imports as verbs of the worker, and the files that they leave."""

from __future__ import annotations

import shutil
import time
from typing import Any

from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.models import Operation
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.outcomes import succeed
from epochal.service.commands.bundles import folders
from epochal.service.commands.bundles.exporting import KEPT, Exporting
from epochal.service.commands.bundles.importing import Importing
from epochal.service.commands.bundles.uploads import Uploads
from epochal.service.commands.lifecycle import Lifecycle, announce_begun, start_operation
from epochal.service.domain.settings import Settings
from epochal.service.runtime.operations import OperationWorker, Verb
from epochal.snapshots.store import SnapshotStore
from epochal.wire.bundles import ExportArguments, ImportArguments, ImportResult

LANE = "bundles"


class BundleWork:
    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: SnapshotStore,
        uploads: Uploads,
        lifecycle: Lifecycle,
        worker: OperationWorker,
    ) -> None:
        self._settings = settings
        self._database = database
        exporting = Exporting(settings, database, store)
        self._importing = Importing(settings, database, store, uploads)
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
            application = ApplicationRepository(session).named(result.application)
            if arguments.start:
                started = start_operation(session, application, operation.created_by)
                result = result.model_copy(update={"operation": started.id})
                announce_begun(session, application, started)
                executions.extend([started.execution] if started.execution else [])
            succeed(session, application, operation, result.model_dump(mode="json"))

        self._importing.run(claim, arguments, finish)
        self._lifecycle.wake(executions[0] if executions else None)

    def _tidy(self) -> None:
        """Bundles that have expired, drafts whose control plane was killed, uploads that nobody goes on with."""
        with self._database.reading() as session:
            busy = {row.arguments.get("upload") for row in OperationRepository(session).running("import")}
        oldest = time.time() - KEPT.total_seconds()
        for path in folders.exports(self._settings).iterdir():
            if path.name.endswith(folders.UNFINISHED) or path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)
        for path in folders.uploads(self._settings).iterdir():
            upload = path.name.partition(".")[0]
            if upload in busy or path.stat().st_mtime >= oldest:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                self._uploads.remove(upload)
