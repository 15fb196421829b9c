"""Annotations of snapshots (pins, tags, messages) and savepoints.

A driver creates a savepoint at an epoch boundary; without a driver, the last committed epoch becomes the savepoint.
"""

from __future__ import annotations

from epochal.contracts.identity import EpochKey
from epochal.errors import Conflict, NameTaken, NotFound
from epochal.service.catalog import operation_completion
from epochal.service.catalog.annotations import AnnotationRepository, message_answer, pin_answer, tag_answer
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.events import announce_operation, announce_savepoint
from epochal.service.catalog.executions import ENDED
from epochal.service.catalog.folding import hold
from epochal.service.catalog.models import Application
from epochal.service.catalog.operations import OperationRepository, operation_answer
from epochal.service.catalog.savepoints import SavepointRepository
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.commands.applications import Lifecycle
from epochal.wire.operations import OperationAnswer
from epochal.wire.snapshots import (
    CreatePin,
    CreateSavepoint,
    CreateTag,
    SnapshotMessageAnswer,
    SnapshotPinAnswer,
    SnapshotTagAnswer,
    WriteMessage,
)


class AnnotationService:
    """Snapshots are named by their epoch in the application's lineage. Raises ``NotFound`` for an unknown epoch."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pin(self, application: str, epoch: int, request: CreatePin, by: str) -> SnapshotPinAnswer:
        """Raises ``SnapshotExpired``: files of expired snapshots may be deleted."""
        with self._database.writing() as session:
            row = ApplicationRepository(session).named(application)
            key = _retained(session, row, epoch)
            hold(session, key)
            return pin_answer(AnnotationRepository(session).add_pin(row, key, request.message, by))

    def unpin(self, application: str, epoch: int) -> None:
        with self._database.writing() as session:
            repository = AnnotationRepository(session)
            row = repository.pin(SnapshotRepository(session).decided(application, epoch))
            if row is None:
                raise NotFound(f"Epoch {epoch} of application {application!r} is not pinned.")
            repository.remove(row)

    def tag(self, application: str, epoch: int, request: CreateTag, by: str) -> SnapshotTagAnswer:
        """Raises ``NameTaken`` unless the tag may move, ``SnapshotExpired``."""
        with self._database.writing() as session:
            row, repository = ApplicationRepository(session).named(application), AnnotationRepository(session)
            key = _retained(session, row, epoch)
            there = repository.tag(row, request.name)
            if there is not None and not request.move and EpochKey(there.branch, there.epoch) != key:
                raise NameTaken(
                    f"Application {application!r} already has a tag {request.name!r}, at epoch {there.epoch}; choose "
                    "another name, or move it."
                )
            return tag_answer(repository.put_tag(row, key, request.name, request.message, by))

    def untag(self, application: str, epoch: int, name: str) -> None:
        with self._database.writing() as session:
            repository = AnnotationRepository(session)
            key = SnapshotRepository(session).decided(application, epoch)
            row = repository.tag(ApplicationRepository(session).named(application), name)
            if row is None or EpochKey(row.branch, row.epoch) != key:
                raise NotFound(f"Epoch {epoch} of application {application!r} has no tag {name!r}.")
            repository.remove(row)

    def write(self, application: str, epoch: int, request: WriteMessage, by: str) -> SnapshotMessageAnswer:
        """Set the message, also of an expired snapshot, which stays in the lineage."""
        with self._database.writing() as session:
            key = SnapshotRepository(session).decided(application, epoch)
            return message_answer(AnnotationRepository(session).put_message(key, request.message, by))

    def erase(self, application: str, epoch: int) -> None:
        with self._database.writing() as session:
            repository = AnnotationRepository(session)
            row = repository.message(SnapshotRepository(session).decided(application, epoch))
            if row is None:
                raise NotFound(f"Epoch {epoch} of application {application!r} has no message.")
            repository.remove(row)


def _retained(session: Session, application: Application, epoch: int) -> EpochKey:
    return SnapshotRepository(session).resolve(application, epoch, None).key


class SavepointService:
    def __init__(self, database: Database, lifecycle: Lifecycle) -> None:
        self._database = database
        self._lifecycle = lifecycle

    def create(self, application: str, request: CreateSavepoint, by: str) -> OperationAnswer:
        """Raises ``NameTaken``, ``Conflict`` while the application is stopping."""
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
                raise Conflict(f"Application {application!r} is stopping; create the savepoint when it has stopped.")
            else:
                operation = operations.add("savepoint", row, execution, arguments, by, "waiting for the driver")
                operations.direct(execution, operation, "savepoint", {"name": request.name})
                announce_operation(session, application, operation)
            answer = operation_answer(operation, application)
            waiting = operation.execution
        self._lifecycle.wake(waiting)
        return answer

    def delete(self, application: str, name: str) -> None:
        """Delete the savepoint. Its snapshot then expires like others of its age."""
        with self._database.writing() as session:
            repository = SavepointRepository(session)
            savepoint = repository.get(ApplicationRepository(session).named(application), name)
            repository.delete(savepoint)
            announce_savepoint(session, application, savepoint.row, deleted=True)
