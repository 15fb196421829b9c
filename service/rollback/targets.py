"""Which snapshot does a rollback mean? Any that is retained, also of a branch that an earlier rollback left."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import InvalidInput, NotFound, SnapshotExpired
from epochal.service.catalog.lineage import segments
from epochal.service.catalog.models import Application, Branch, Epoch, SnapshotTag
from epochal.service.catalog.records import manifest_of
from epochal.service.catalog.types import now
from epochal.service.rollback.schemas import RollBack
from epochal.service.savepoints.repository import SavepointRepository
from epochal.service.schema import UtcTime
from epochal.service.snapshots.repository import SnapshotRepository


def target_of(session: Session, application: Application, request: RollBack) -> Epoch:
    """The committed epoch that is meant. ``InvalidInput``, ``NotFound``, ``SnapshotExpired``."""
    named = [request.epoch, request.savepoint, request.tag, request.at]
    if sum(name is not None for name in named) != 1:
        raise InvalidInput("Say where to roll back to: one of epoch, savepoint, tag and at.")
    if request.savepoint is not None:
        key = SavepointRepository(session).get(application, request.savepoint).key
        row = session.get_one(Epoch, (key.branch, key.epoch))
    elif request.tag is not None:
        row = _tagged(session, application, request.tag)
    elif request.at is not None:
        row = _committed_by(session, application, request.at)
    else:
        assert request.epoch is not None  # one of the four is given
        row = _numbered(session, application, request.epoch)
    check_there(session, application, row)
    return row


def check_there(session: Session, application: Application, row: Epoch) -> None:
    """Raises ``NotFound`` unless the epoch was committed, ``SnapshotExpired`` when its files may be gone."""
    if row.state != State.COMMITTED.value or manifest_of(row) is None:
        raise NotFound(f"Epoch {row.epoch} of application {application.name!r} is {row.state}, not committed.")
    if row.collected_at is not None:
        raise SnapshotExpired(
            f"Epoch {row.epoch} of application {application.name!r} was collected at {row.collected_at:%Y-%m-%d %H:%M} "
            "UTC: its files are gone. Roll back to a later epoch, or to a savepoint."
        )
    SnapshotRepository(session).check_retained(application, EpochKey(row.branch, row.epoch))


def _numbered(session: Session, application: Application, epoch: int) -> Epoch:
    """Of the lineage, or of another branch of the application: no two of them use the same number."""
    try:
        return SnapshotRepository(session).epoch(application, epoch)
    except NotFound:
        branches = select(Branch.id).where(Branch.application == application.id)
        query = select(Epoch).where(Epoch.branch.in_(branches), Epoch.epoch == epoch)
        row = session.scalars(query).first()
        if row is None:
            raise
        return row


def _tagged(session: Session, application: Application, name: str) -> Epoch:
    tag = session.get(SnapshotTag, (application.id, name))
    if tag is None:
        raise NotFound(f"Application {application.name!r} has no tag {name!r}.")
    return session.get_one(Epoch, (tag.branch, tag.epoch))


def _committed_by(session: Session, application: Application, at: UtcTime) -> Epoch:
    if at > now():
        raise InvalidInput(f"{at:%Y-%m-%d %H:%M:%S} UTC is yet to come.")
    branch = session.get_one(Branch, application.branch, populate_existing=True)
    for segment in segments(session, branch):
        query = select(Epoch).where(
            Epoch.branch == segment.branch.id, Epoch.state == State.COMMITTED.value, Epoch.committed_at <= at
        )
        if segment.last is not None:
            query = query.where(Epoch.epoch <= segment.last)
        row = session.scalars(query.order_by(Epoch.epoch.desc()).limit(1)).first()
        if row is not None:
            return row
    raise NotFound(f"Application {application.name!r} had not committed an epoch by {at:%Y-%m-%d %H:%M:%S} UTC.")
