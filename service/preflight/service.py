"""Preflight: everything that would be checked by an upgrade, without one; and trials, which take their time."""

from __future__ import annotations

from typing import Any

from epochal.contracts.identity import EpochKey
from epochal.errors import InvalidInput
from epochal.service.applications.lifecycle import Lifecycle
from epochal.service.applications.repository import ApplicationRepository
from epochal.service.catalog.announcements import operation_changed
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Operation
from epochal.service.operations.repository import OperationRepository
from epochal.service.operations.schemas import OperationAnswer
from epochal.service.operations.service import operation_answer
from epochal.service.operations.worker import OperationWorker, Progress
from epochal.service.ports import EventSink
from epochal.service.preflight.check import Check, snapshot_of
from epochal.service.preflight.schemas import Preflight, PreflightAnswer


class PreflightService:
    def __init__(self, database: Database, check: Check, lifecycle: Lifecycle, events: EventSink) -> None:
        self._database = database
        self._check = check
        self._lifecycle = lifecycle
        self.worker = OperationWorker("trials", database, events, {"trial": self._carry_out})

    def check(self, request: Preflight) -> PreflightAnswer:
        """Raises ``NotFound``, ``SnapshotExpired``, and what the builder says of the code."""
        with self._database.reading() as session:
            at = snapshot_of(session, ApplicationRepository(session).named(request.application), request)
        return self._check.run(request, at, lambda said: None)

    def try_out(self, request: Preflight, by: str) -> OperationAnswer:
        """The same and a trial, in the background, of the snapshot that is meant now.

        Raises ``NotFound``, ``SnapshotExpired``, ``ArtifactError``, ``OptionError``, and ``InvalidInput`` when there is
        no epoch that could be run again.
        """
        with self._database.writing() as session:
            application = ApplicationRepository(session).named(request.application)
            at = snapshot_of(session, application, request)
            if at is None:
                raise InvalidInput(
                    f"Application {request.application!r} has no committed epoch that could be tried again."
                )
            self._check.wanted(session, application, request)
            arguments = {"request": request.model_dump(mode="json"), "branch": at.branch, "epoch": at.epoch}
            operation = OperationRepository(session).add("trial", application, None, arguments, by, "waiting")
            answer = operation_answer(operation, application.name)
            event = operation_changed(application.name, operation)
        self._lifecycle.announce([event], None)
        self.worker.wake()
        return answer

    def _carry_out(self, id: str, progress: Progress) -> dict[str, Any]:
        with self._database.reading() as session:
            arguments = session.get_one(Operation, id).arguments
        at = EpochKey(arguments["branch"], arguments["epoch"])
        return self._check.run(Preflight.model_validate(arguments["request"]), at, progress).model_dump(mode="json")
