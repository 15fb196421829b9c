"""Which snapshots are retained. The functions run inside a transaction of the caller.

An application retains the last ``retained_epochs`` committed snapshots of its lineage, of those none that is older than
``retained_seconds``, but always the latest. Snapshots on its other branches, which a rollback left, are retained as
long as those of the same age on its lineage. Beyond that a snapshot is *held*: by a savepoint, by a pin, by a branch
that stands on it, by an operation that works on it, or as the one before a head that is drained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.service.catalog.executions import ENDED, latest_version
from epochal.service.catalog.lineage import segments
from epochal.service.catalog.models import (
    Application,
    Branch,
    Epoch,
    Execution,
    Operation,
    Savepoint,
    SnapshotPin,
)
from epochal.service.catalog.records import is_drained, key_of
from epochal.service.catalog.types import now
from epochal.wire.configuration import ApplicationConfiguration


@dataclass(frozen=True)
class Horizon:
    """How far back an application retains. ``lineage``: its branches up to which epoch (``None``: all)."""

    lineage: Mapping[str, int | None]
    oldest: int | None
    """The smallest epoch number of the lineage that is retained; ``None`` while all are."""
    since: datetime | None
    """Snapshots that were committed before have expired; ``None`` while none has."""
    aged_before: datetime | None
    latest: EpochKey | None
    """The latest committed snapshot, which never expires."""
    epochs: int
    """``retained_epochs``."""

    def __str__(self) -> str:
        """For people: what is kept."""
        kept = f"the latest {self.epochs} committed epochs are kept"
        if self.oldest is not None:
            kept += f", the oldest of them is {self.oldest}"
        if self.aged_before is not None:
            kept += f", and none from before {self.aged_before:%Y-%m-%d %H:%M} UTC"
        return kept

    def retains(self, key: EpochKey, committed_at: datetime) -> bool:
        """Whether a committed snapshot of the lineage, or of another branch of the application, is retained."""
        if key == self.latest:
            return True
        if self.aged_before is not None and committed_at < self.aged_before:
            return False
        if key.branch in self.lineage and key.epoch <= (self.lineage[key.branch] or key.epoch):
            return self.oldest is None or key.epoch >= self.oldest
        return self.since is None or committed_at >= self.since


def horizon_of(session: Session, application: Application) -> Horizon:
    """How far back the application retains, by its latest version's configuration."""
    version = latest_version(session, application.id)
    configuration = ApplicationConfiguration.model_validate(version.configuration)
    branch = session.get_one(Branch, application.branch, populate_existing=True)
    lineage: dict[str, int | None] = {}
    latest: EpochKey | None = None
    oldest: tuple[int, datetime] | None = None
    missing = configuration.retained_epochs
    for segment in segments(session, branch):
        lineage[segment.branch.id] = segment.last
        query = select(Epoch.epoch, Epoch.committed_at).where(
            Epoch.branch == segment.branch.id, Epoch.state == State.COMMITTED.value
        )
        if segment.last is not None:
            query = query.where(Epoch.epoch <= segment.last)
        if oldest is None:
            found = session.execute(query.order_by(Epoch.epoch.desc()).limit(missing)).all()
            missing -= len(found)
            if found and latest is None:
                latest = EpochKey(segment.branch.id, found[0][0])
            if missing == 0 and found[-1][1] is not None:
                oldest = found[-1][0], found[-1][1]
    age = configuration.retained_seconds
    aged_before = None if age is None else now() - timedelta(seconds=age)
    return Horizon(
        lineage=lineage,
        oldest=oldest[0] if oldest else None,
        since=oldest[1] if oldest else None,
        aged_before=aged_before,
        latest=latest,
        epochs=configuration.retained_epochs,
    )


def held(session: Session) -> Iterator[EpochKey]:
    """Every snapshot that is kept whatever its age, by the applications that are there; some of them twice."""
    live = select(Application.id).where(Application.deleted_at.is_(None))
    for table in (Savepoint, SnapshotPin):
        rows = session.execute(select(table.branch, table.epoch).where(table.application.in_(live)))
        yield from (EpochKey(branch, epoch) for branch, epoch in rows)
    branches = live_branches(session)
    for branch in branches.values():
        if branch.parent_branch is not None and branch.parent_epoch is not None:
            yield EpochKey(branch.parent_branch, branch.parent_epoch)
    yield from _before_drains(session, branches)
    for arguments in session.scalars(select(Operation.arguments).where(Operation.state == "running")):
        if isinstance(arguments.get("branch"), str) and isinstance(arguments.get("epoch"), int):
            yield EpochKey(arguments["branch"], arguments["epoch"])


def _before_drains(session: Session, branches: Mapping[str, Branch]) -> Iterator[EpochKey]:
    """What heads that are drained stand on: it alone can be gone on from."""
    heads = select(Branch.id, Epoch).join(
        Epoch, and_(Epoch.branch == Branch.head_branch, Epoch.epoch == Branch.head_epoch)
    )
    for branch, head in session.execute(heads.where(Epoch.opened_for.is_not(None))):
        parent = key_of(head.parent_branch, head.parent_epoch)
        if branch in branches and parent is not None and is_drained(head):
            yield parent


def is_held(session: Session, key: EpochKey) -> bool:
    """As :func:`held`, for one snapshot."""
    return any(other == key for other in held(session))


def live_branches(session: Session) -> Mapping[str, Branch]:
    """Branches that applications are on, or run on, and all that those stand on."""
    everything = {branch.id: branch for branch in session.scalars(select(Branch))}
    looking = list(session.scalars(select(Application.branch).where(Application.deleted_at.is_(None))))
    looking += session.scalars(select(Execution.branch).where(Execution.state.not_in(ENDED)))
    found: dict[str, Branch] = {}
    while looking:
        branch = everything.get(looking.pop())
        if branch is not None and branch.id not in found:
            found[branch.id] = branch
            looking += [branch.parent_branch] if branch.parent_branch else []
    return found
