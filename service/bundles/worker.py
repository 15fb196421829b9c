"""The thread that builds and unpacks bundles: one at a time, each again from its beginning after a restart."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from sqlalchemy.orm import Session

from epochal.errors import CatalogUnavailable, EnvironmentProblem, EpochalError
from epochal.service.applications.lifecycle import Lifecycle, changes, start_operation
from epochal.service.applications.repository import ApplicationRepository
from epochal.service.bundles import folders
from epochal.service.bundles.exporting import KEPT, Exporting
from epochal.service.bundles.importing import Importing
from epochal.service.bundles.uploads import Uploads
from epochal.service.catalog.announcements import operation_changed
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Application, Operation
from epochal.service.catalog.outcomes import fail, succeed
from epochal.service.operations.repository import OperationRepository
from epochal.service.ports import ControlEvent
from epochal.service.problems import problem_of
from epochal.service.settings import Settings

log = logging.getLogger("epochal.bundles")

PAUSE_SECONDS = 60.0
"""Between two looks for something to do, if nobody rings."""
_PROGRESS_SECONDS = 1.0


class BundleWorker:
    """A part of the control plane: opened and closed with it."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        exporting: Exporting,
        importing: Importing,
        uploads: Uploads,
        lifecycle: Lifecycle,
    ) -> None:
        self._settings = settings
        self._database = database
        self._exporting = exporting
        self._importing = importing
        self._uploads = uploads
        self._lifecycle = lifecycle
        self._bell = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="bundles", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What is under way is begun again by the next control plane."""
        self._closing = True
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def wake(self) -> None:
        """There is something to do. Returns at once."""
        self._bell.set()

    def work_off(self) -> None:
        """Carry out what waits, in the caller's thread. Raises ``CatalogUnavailable``."""
        self._tidy()
        for id, kind in self._waiting():
            self._carry_out(id, kind)

    def _run(self) -> None:
        while not self._closing:
            self._bell.clear()
            try:
                self.work_off()
            except CatalogUnavailable as error:
                log.warning("bundles wait: %s", error)
            except Exception:
                log.exception("the bundles' thread goes on after an error")
            self._bell.wait(PAUSE_SECONDS)

    def _waiting(self) -> list[tuple[str, str]]:
        with self._database.reading() as session:
            return [(row.id, row.kind) for row in OperationRepository(session).running("export", "import")]

    def _carry_out(self, id: str, kind: str) -> None:
        if self._closing:
            return
        try:
            if kind == "export":
                self._finish_export(id, self._exporting.run(id, self._progress(id)))
            else:
                self._import(id)
        except CatalogUnavailable:
            raise
        except EpochalError as error:
            self._fail(id, error)
        except Exception:
            log.exception("%s %s failed", kind, id)
            self._fail(id, EnvironmentProblem(f"The {kind} failed; the control plane's log says why. Try it again."))

    def _finish_export(self, id: str, result: dict[str, Any]) -> None:
        with self._database.writing() as session:
            row = session.get_one(Operation, id)
            events = [succeed(session.get_one(Application, row.application), row, result)]
        self._announce(events, None)

    def _import(self, id: str) -> None:
        events: list[ControlEvent] = []
        executions: list[str] = []

        def finish(session: Session, operation: Operation, result: dict[str, Any]) -> None:
            application = ApplicationRepository(session).named(result["application"])
            if operation.arguments["start"]:
                started = start_operation(session, application, operation.created_by)
                result = {**result, "operation": started.id}
                events.append(operation_changed(application.name, started))
                events.extend(changes(session, application))
                executions.extend([started.execution] if started.execution else [])
            events.append(succeed(application, operation, result))

        self._importing.run(id, self._progress(id), finish)
        self._announce(events, executions[0] if executions else None)

    def _fail(self, id: str, error: EpochalError) -> None:
        with self._database.writing() as session:
            row = session.get_one(Operation, id)
            events = [fail(session, session.get_one(Application, row.application), row, problem_of(error))]
        self._announce(events, None)

    def _progress(self, id: str) -> Any:
        """Kept in the catalog, at most once a second."""
        last = 0.0

        def tell(text: str) -> None:
            nonlocal last
            if time.monotonic() - last < _PROGRESS_SECONDS:
                return
            last = time.monotonic()
            with self._database.writing() as session:
                session.get_one(Operation, id).progress = text

        return tell

    def _announce(self, events: list[ControlEvent], execution: str | None) -> None:
        self._lifecycle.announce(events, execution)

    def _tidy(self) -> None:
        """Bundles that have expired, drafts whose control plane was killed, uploads that nobody goes on with."""
        with self._database.reading() as session:
            busy = {row.arguments.get("upload") for row in OperationRepository(session).running("import")}
        oldest = time.time() - KEPT.total_seconds()
        for path in folders.exports(self._settings).iterdir():
            if path.name.endswith(folders.UNFINISHED) or path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)
        for path in folders.uploads(self._settings).iterdir():
            if path.is_file() and path.stem not in busy and path.stat().st_mtime < oldest:
                self._uploads.remove(path.stem)
