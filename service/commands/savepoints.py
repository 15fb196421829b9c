"""Savepoints: made by the driver at an epoch boundary, or at once of the last committed epoch when nothing runs."""

from __future__ import annotations

from epochal.errors import Conflict
from epochal.service.catalog import operation_completion
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.events import announce_operation, announce_savepoint
from epochal.service.catalog.executions import ENDED
from epochal.service.catalog.operations import OperationRepository, operation_answer
from epochal.service.catalog.savepoints import SavepointRepository
from epochal.service.commands.lifecycle import Lifecycle
from epochal.wire.operations import OperationAnswer
from epochal.wire.snapshots import CreateSavepoint


class SavepointService:
    def __init__(self, database: Database, lifecycle: Lifecycle) -> None:
        self._database = database
        self._lifecycle = lifecycle

    def create(self, application: str, request: CreateSavepoint, by: str) -> OperationAnswer:
        """Raises ``NameTaken``, ``Conflict`` when the application is stopping."""
        with self._database.writing() as session:
            applications, operations = ApplicationRepository(session), OperationRepository(session)
            row = applications.locked(application)
            SavepointRepository(session).check_free(row, request.name)
            execution = applications.execution(row)
            arguments = {"savepoint": request.name, "message": request.message}
            if execution is None or execution.state in ENDED:
                operation = operations.add("savepoint", row, None, arguments, by)
                operation_completion.savepoint_of_head(session, row, operation)
            elif execution.state == "stopping":
                raise Conflict(f"Application {application!r} is stopping; make the savepoint when it has stopped.")
            else:
                operation = operations.add("savepoint", row, execution, arguments, by, "waiting for the driver")
                operations.direct(execution, operation, "savepoint", {"name": request.name})
                announce_operation(session, application, operation)
            answer = operation_answer(operation, application)
            waiting = operation.execution
        self._lifecycle.wake(waiting)
        return answer

    def delete(self, application: str, name: str) -> None:
        """Its snapshot is then kept only as long as others of its age."""
        with self._database.writing() as session:
            repository = SavepointRepository(session)
            savepoint = repository.get(ApplicationRepository(session).named(application), name)
            repository.delete(savepoint)
            announce_savepoint(session, application, savepoint.row, deleted=True)
