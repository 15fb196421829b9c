"""Pins, tags and messages of snapshots."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.service.catalog.models import Application, SnapshotMessage, SnapshotPin, SnapshotTag
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.types import now
from epochal.service.domain.pages import PageRequest, Part
from epochal.wire.snapshots import Annotations, SnapshotMessageAnswer, SnapshotPinAnswer, SnapshotTagAnswer

_AT_ONCE = 400


class AnnotationRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def of(self, keys: Collection[EpochKey]) -> Mapping[EpochKey, Annotations]:
        """Annotations by snapshot; snapshots without annotations are left out."""
        pins: dict[EpochKey, SnapshotPinAnswer] = {}
        tags: dict[EpochKey, list[SnapshotTagAnswer]] = {}
        messages: dict[EpochKey, SnapshotMessageAnswer] = {}
        pairs = [(key.branch, key.epoch) for key in keys]
        for start in range(0, len(pairs), _AT_ONCE):
            some = pairs[start : start + _AT_ONCE]
            for pin in self._all(SnapshotPin, some):
                pins[_key(pin)] = pin_answer(pin)
            for tag in self._all(SnapshotTag, some):
                tags.setdefault(_key(tag), []).append(tag_answer(tag))
            for message in self._all(SnapshotMessage, some):
                messages[_key(message)] = message_answer(message)
        return {
            key: Annotations(pin=pins.get(key), tags=_by_name(tags.get(key, [])), message=messages.get(key))
            for key in pins.keys() | tags.keys() | messages.keys()
        }

    def pin(self, key: EpochKey) -> SnapshotPin | None:
        return self._session.get(SnapshotPin, (key.branch, key.epoch))

    def add_pin(self, application: Application, key: EpochKey, message: str | None, by: str) -> SnapshotPin:
        """A pin belongs to the application that pinned the snapshot last."""
        row = SnapshotPin(
            branch=key.branch,
            epoch=key.epoch,
            application=application.id,
            message=message,
            created_at=now(),
            created_by=by,
        )
        return self._session.merge(row)

    def tag(self, application: Application, name: str) -> SnapshotTag | None:
        return self._session.get(SnapshotTag, (application.id, name))

    def put_tag(self, application: Application, key: EpochKey, name: str, message: str | None, by: str) -> SnapshotTag:
        row = SnapshotTag(
            application=application.id,
            name=name,
            branch=key.branch,
            epoch=key.epoch,
            message=message,
            created_at=now(),
            created_by=by,
        )
        return self._session.merge(row)

    def message(self, key: EpochKey) -> SnapshotMessage | None:
        return self._session.get(SnapshotMessage, (key.branch, key.epoch))

    def put_message(self, key: EpochKey, message: str, by: str) -> SnapshotMessage:
        row = SnapshotMessage(branch=key.branch, epoch=key.epoch, message=message, created_at=now(), created_by=by)
        return self._session.merge(row)

    def remove(self, row: SnapshotPin | SnapshotTag | SnapshotMessage) -> None:
        self._session.delete(row)

    def tags(self, application: Application, page: PageRequest) -> Part:
        """Ordered by name."""
        query = select(SnapshotTag).where(SnapshotTag.application == application.id)
        return paginate(self._session, query, page, [SnapshotTag.name])

    def pins(self, application: Application, page: PageRequest) -> Part:
        """Ordered by branch and epoch."""
        query = select(SnapshotPin).where(SnapshotPin.application == application.id)
        return paginate(self._session, query, page, [SnapshotPin.branch, SnapshotPin.epoch])

    def _all(self, table: Any, pairs: list[tuple[str, int]]) -> Any:
        return self._session.scalars(select(table).where(tuple_(table.branch, table.epoch).in_(pairs)))


def pin_answer(row: SnapshotPin) -> SnapshotPinAnswer:
    return SnapshotPinAnswer(
        branch=row.branch, epoch=row.epoch, message=row.message, created_at=row.created_at, created_by=row.created_by
    )


def tag_answer(row: SnapshotTag) -> SnapshotTagAnswer:
    return SnapshotTagAnswer(
        name=row.name,
        branch=row.branch,
        epoch=row.epoch,
        message=row.message,
        created_at=row.created_at,
        created_by=row.created_by,
    )


def message_answer(row: SnapshotMessage) -> SnapshotMessageAnswer:
    return SnapshotMessageAnswer(
        branch=row.branch, epoch=row.epoch, message=row.message, created_at=row.created_at, created_by=row.created_by
    )


def _by_name(tags: list[SnapshotTagAnswer]) -> tuple[SnapshotTagAnswer, ...]:
    return tuple(sorted(tags, key=lambda tag: tag.name))


def _key(row: SnapshotPin | SnapshotTag | SnapshotMessage) -> EpochKey:
    return EpochKey(row.branch, row.epoch)
