"""How people name a snapshot: ``12``, ``monday`` (a savepoint or tag), ``head``; of another ``again:12``."""

from __future__ import annotations

import re

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.declarations.names import alternatives
from epochal.errors import InvalidInput, NotFound
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.lineage import committed_head
from epochal.service.catalog.models import Application, Savepoint, SnapshotTag
from epochal.service.catalog.snapshots import SnapshotRepository

HEAD = "head"
_NAME = re.compile(
    r"(?:(?P<application>[a-z][-a-z0-9]{0,62}):)?(?:(?P<epoch>[0-9]{1,18})|(?P<name>[a-z][-a-z0-9]{0,62}))"
)


def named_snapshot(session: Session, application: str, text: str) -> ManifestReference:
    """The committed snapshot of ``application``, or of the one that the text names.

    A savepoint goes before a tag, and both before ``head``, the latest committed epoch. Raises ``InvalidInput``,
    ``NotFound``, ``SnapshotExpired``.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise InvalidInput(
            f"{text[:80]!r} names no snapshot: give an epoch, a savepoint, a tag or {HEAD!r}, of another application "
            "as NAME:EPOCH."
        )
    row = ApplicationRepository(session).named(match["application"] or application)
    repository = SnapshotRepository(session)
    if match["epoch"] is not None:
        return repository.resolve(row, int(match["epoch"]), None)
    name = match["name"]
    if session.get(Savepoint, (row.id, name)) is not None:
        return repository.resolve(row, None, name)
    if session.get(SnapshotTag, (row.id, name)) is not None:
        return repository.resolve(row, None, None, tag=name)
    if name == HEAD:
        return _head(session, row, repository)
    known = [
        *session.scalars(select(Savepoint.name).where(Savepoint.application == row.id)),
        *session.scalars(select(SnapshotTag.name).where(SnapshotTag.application == row.id)),
    ]
    raise NotFound(f"Application {row.name!r} has no savepoint and no tag {name!r}.{alternatives(name, known)}")


def _head(session: Session, row: Application, repository: SnapshotRepository) -> ManifestReference:
    key = committed_head(session, ApplicationRepository(session).branch(row))
    if key is None:
        raise NotFound(f"Application {row.name!r} has not committed an epoch yet.")
    return repository.reference(key)
