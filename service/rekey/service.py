"""Asking for a rekey."""

from __future__ import annotations

from epochal.service.applications.lifecycle import Lifecycle
from epochal.service.applications.repository import ApplicationRepository
from epochal.service.catalog.announcements import operation_changed
from epochal.service.catalog.database import Database
from epochal.service.catalog.identifiers import new_branch_id
from epochal.service.operations.repository import OperationRepository
from epochal.service.operations.schemas import OperationAnswer
from epochal.service.operations.service import operation_answer
from epochal.service.operations.worker import OperationWorker
from epochal.service.ports import EventSink
from epochal.service.rekey.rekeying import Rekeying, planned
from epochal.service.rekey.schemas import Rekey


class RekeyService:
    def __init__(self, database: Database, rekeying: Rekeying, lifecycle: Lifecycle, events: EventSink) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self.worker = OperationWorker("rekeys", database, events, {"rekey": rekeying.run})

    def rekey(self, name: str, request: Rekey, by: str) -> OperationAnswer:
        """Until it is done, the application cannot be started.

        Raises ``Conflict`` unless it is stopped with everything committed, ``OptionError``.
        """
        with self._database.writing() as session:
            application = ApplicationRepository(session).locked(name)
            operations = OperationRepository(session)
            operations.check_none_running(application)
            planned(session, application, request, new_branch_id(name))
            arguments = {"request": request.model_dump(mode="json"), "branches": []}
            operation = operations.add("rekey", application, None, arguments, by, "waiting")
            answer, event = operation_answer(operation, name), operation_changed(name, operation)
        self._lifecycle.announce([event], None)
        self.worker.wake()
        return answer
