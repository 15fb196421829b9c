"""Preflight: everything that would be checked by an upgrade, without one; and trials, which take their time."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.errors import InvalidInput
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Application, Operation
from epochal.service.commands.preflight_check import Check, snapshot_of
from epochal.service.domain.ports import EventSink
from epochal.service.runtime.operations import OperationWorker, Progress
from epochal.wire.operations import OperationAnswer
from epochal.wire.preflight import Preflight, PreflightAnswer


class PreflightService:
    def __init__(self, database: Database, check: Check, events: EventSink) -> None:
        self._database = database
        self._check = check
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

        def wish(session: Session) -> tuple[Application, dict[str, Any]]:
            application = ApplicationRepository(session).named(request.application)
            at = snapshot_of(session, application, request)
            if at is None:
                raise InvalidInput(
                    f"Application {request.application!r} has no committed epoch that could be tried again."
                )
            self._check.candidate(session, application, request)
            return application, {"request": request.model_dump(mode="json"), "branch": at.branch, "epoch": at.epoch}

        return self.worker.begin("trial", by, wish)

    def _carry_out(self, id: str, progress: Progress) -> dict[str, Any]:
        with self._database.reading() as session:
            arguments = session.get_one(Operation, id).arguments
        at = EpochKey(arguments["branch"], arguments["epoch"])
        return self._check.run(Preflight.model_validate(arguments["request"]), at, progress).model_dump(mode="json")
