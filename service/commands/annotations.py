from __future__ import annotations

from epochal.contracts.identity import EpochKey
from epochal.errors import NameTaken, NotFound
from epochal.service.catalog.annotations import AnnotationRepository, message_answer, pin_answer, tag_answer
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.folding import hold
from epochal.service.catalog.models import Application
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.wire.snapshots import (
    CreatePin,
    CreateTag,
    MessageAnswer,
    PinAnswer,
    TagAnswer,
    WriteMessage,
)


class AnnotationService:
    """Snapshots are named by their epoch, along the application's lineage. ``NotFound`` for one that is not there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pin(self, application: str, epoch: int, request: CreatePin, by: str) -> PinAnswer:
        """Raises ``SnapshotExpired``: what has expired may be gone."""
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

    def tag(self, application: str, epoch: int, request: CreateTag, by: str) -> TagAnswer:
        """Raises ``NameTaken`` unless the tag may move, ``SnapshotExpired``."""
        with self._database.writing() as session:
            row, repository = ApplicationRepository(session).named(application), AnnotationRepository(session)
            key = _retained(session, row, epoch)
            there = repository.tag(row, request.name)
            if there is not None and not request.move and EpochKey(there.branch, there.epoch) != key:
                raise NameTaken(
                    f"Application {application!r} has a tag {request.name!r} already, of epoch {there.epoch}; "
                    "choose another name, or move it."
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

    def write(self, application: str, epoch: int, request: WriteMessage, by: str) -> MessageAnswer:
        """Also about a snapshot that has expired: it stays a part of the lineage."""
        with self._database.writing() as session:
            key = SnapshotRepository(session).decided(application, epoch)
            return message_answer(AnnotationRepository(session).put_message(key, request.message, by))

    def erase(self, application: str, epoch: int) -> None:
        with self._database.writing() as session:
            repository = AnnotationRepository(session)
            row = repository.message(SnapshotRepository(session).decided(application, epoch))
            if row is None:
                raise NotFound(f"Nobody has written about epoch {epoch} of application {application!r}.")
            repository.remove(row)


def _retained(session: Session, application: Application, epoch: int) -> EpochKey:
    return SnapshotRepository(session).resolve(application, epoch, None).key
