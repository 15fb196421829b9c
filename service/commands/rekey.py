"""Asking for a rekey."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from epochal.service.catalog.applications import ApplicationRepository, Revisions
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import check_not_drained
from epochal.service.catalog.models import Application
from epochal.service.catalog.operations import OperationRepository
from epochal.service.commands.rekeying import Rekeying, planned
from epochal.service.domain.identifiers import new_branch_id
from epochal.service.domain.ports import EventSink
from epochal.service.runtime.operations import OperationWorker
from epochal.wire.operations import OperationAnswer
from epochal.wire.rekey import Rekey


class RekeyService:
    def __init__(self, database: Database, rekeying: Rekeying, events: EventSink) -> None:
        self.worker = OperationWorker("rekeys", database, events, {"rekey": rekeying.run})

    def rekey(self, name: str, request: Rekey, by: str, revisions: Revisions = None) -> OperationAnswer:
        """Until it is done, the application cannot be started.

        Raises ``Conflict`` unless it is stopped with everything committed, ``OptionError``.
        """

        def wish(session: Session) -> tuple[Application, dict[str, Any]]:
            application = ApplicationRepository(session).locked(name, revisions)
            OperationRepository(session).check_none_running(application)
            check_not_drained(session, application)
            planned(session, application, request, new_branch_id(name))
            return application, {"request": request.model_dump(mode="json"), "branches": []}

        return self.worker.begin("rekey", by, wish)
