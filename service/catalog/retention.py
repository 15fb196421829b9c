"""Retention of snapshots, and the state of the catalog that garbage collection needs. The functions run inside a
transaction of the caller.

An application retains the last ``retained_epochs`` committed snapshots of its lineage, except those older than
``retained_seconds``, but always the latest. Snapshots on other branches of the application, which a rollback left, are
retained like those of the same age on its lineage. In addition a snapshot is *held* by a savepoint, a pin, a branch
that begins at it, an operation that uses it, or a drained head that follows it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import and_, func, select, tuple_, update
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.executions import ENDED, latest_version
from epochal.service.catalog.folding import FoldingRepository
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
from epochal.service.catalog.store_files import StoreFiles
from epochal.service.catalog.types import now
from epochal.wire.configuration import ApplicationConfiguration

_AT_ONCE = 400


@dataclass
class KnownBranch:
    """``lineage``: the branch and its ancestors. ``head`` is ``None`` before the first epoch."""

    owned: bool
    lineage: tuple[str, ...]
    head: ManifestReference | None
    decided: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class KnownSnapshots:
    """A consistent view of the catalog. ``expired``: decided, and neither retained nor marked as collected."""

    branches: Mapping[str, KnownBranch]
    kept: Mapping[EpochKey, ManifestReference]
    expired: Mapping[EpochKey, ManifestReference]
    collected_lately: Sequence[ManifestReference]
    in_use: frozenset[str]
    """Branches named by running operations."""
    named: Collection[str] = frozenset()
    """Paths of files that belong to no branch."""


@dataclass(frozen=True)
class _Row:
    key: EpochKey
    state: str
    reference: ManifestReference
    committed_at: datetime | None


class RetentionRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def known(self, collected_since: datetime) -> KnownSnapshots:
        """All snapshots. ``collected_lately``: those marked as collected after ``collected_since``."""
        rows, lately = self._snapshots(collected_since)
        branches = self._branches({row.key: row.reference for row in rows})
        kept = self._kept(rows)
        return KnownSnapshots(
            branches=branches,
            kept=kept,
            expired={row.key: row.reference for row in rows if row.key not in kept},
            collected_lately=lately,
            in_use=frozenset(self._in_use()),
            named=StoreFiles(self._session).paths(),
        )

    def still_expired(self, keys: Sequence[EpochKey]) -> list[EpochKey]:
        """Those of the expired snapshots that are still expired, locked, so that they are not retained before the
        transaction ends."""
        for pairs in _chunks(keys):
            locking = select(Epoch.epoch).where(tuple_(Epoch.branch, Epoch.epoch).in_(pairs)).with_for_update()
            self._session.execute(locking).all()
        kept = self._kept(self._snapshots(now())[0])
        return [key for key in keys if key not in kept]

    def kept(self, application: str | None) -> list[ManifestReference]:
        """Retained snapshots, of all applications or on the branches of one. Raises ``NotFound``."""
        kept = self.known(now()).kept
        if application is None:
            return list(kept.values())
        row = ApplicationRepository(self._session).named(application)
        own = select(Branch.id).where(Branch.application == row.id)
        branches = {*self._session.scalars(own), *horizon_of(self._session, row).lineage}
        return [reference for key, reference in kept.items() if key.branch in branches]

    def written_since(self, moment: datetime) -> int:
        """Size in bytes of the deltas of all epochs that were prepared after ``moment``."""
        branches = select(Branch.id).where(Branch.owned)
        written = select(func.sum(Epoch.state_bytes)).where(Epoch.branch.in_(branches), Epoch.prepared_at > moment)
        return int(self._session.scalar(written) or 0)

    def mark(self, keys: Iterable[EpochKey], moment: datetime) -> None:
        """Mark as collected."""
        for pairs in _chunks(keys):
            found = update(Epoch).where(tuple_(Epoch.branch, Epoch.epoch).in_(pairs), Epoch.collected_at.is_(None))
            self._session.execute(found.values(collected_at=moment))

    def _snapshots(self, collected_since: datetime) -> tuple[list[_Row], list[ManifestReference]]:
        columns = (
            Epoch.branch,
            Epoch.epoch,
            Epoch.state,
            Epoch.manifest_path,
            Epoch.manifest_sha256,
            Epoch.committed_at,
            Epoch.collected_at,
        )
        query = select(*columns).where(
            Epoch.state.in_([State.PREPARED.value, State.COMMITTED.value]),
            Epoch.collected_at.is_(None) | (Epoch.collected_at > collected_since),
        )
        rows, lately = [], []
        for branch, epoch, state, path, sha256, committed_at, collected_at in self._session.execute(query):
            reference = ManifestReference(branch=branch, epoch=epoch, path=path, sha256=sha256)
            if collected_at is None:
                rows.append(_Row(reference.key, state, reference, committed_at))
            else:
                lately.append(reference)
        return rows, lately

    def _kept(self, rows: Sequence[_Row]) -> dict[EpochKey, ManifestReference]:
        by_branch: dict[str, list[_Row]] = defaultdict(list)
        for row in rows:
            by_branch[row.key.branch].append(row)
        found = {row.key: row.reference for row in self._retained(by_branch)}
        known = {row.key: row.reference for row in rows}
        return found | {key: known[key] for key in held(self._session) if key in known}

    def _retained(self, by_branch: Mapping[str, Sequence[_Row]]) -> Iterable[_Row]:
        own: dict[str, set[str]] = defaultdict(set)
        for id, owner in self._session.execute(select(Branch.id, Branch.application)):
            own[owner].add(id)
        for application in self._session.scalars(select(Application).where(Application.deleted_at.is_(None))).all():
            horizon, mine = horizon_of(self._session, application), own[application.id]
            for branch in mine | horizon.lineage.keys():
                last = horizon.lineage.get(branch)
                for row in by_branch.get(branch, ()):
                    if branch not in mine and last is not None and row.key.epoch > last:
                        continue  # epochs of another application after this one was forked from it
                    if row.state == State.PREPARED or (
                        row.committed_at is not None and horizon.retains(row.key, row.committed_at)
                    ):
                        yield row

    def _branches(self, references: Mapping[EpochKey, ManifestReference]) -> dict[str, KnownBranch]:
        deleted = set(self._session.scalars(select(Application.id).where(Application.deleted_at.is_not(None))))
        rows = {branch.id: branch for branch in self._session.scalars(select(Branch))}
        found = {
            row.id: KnownBranch(
                owned=row.owned,
                lineage=tuple(_lineage(rows, row)),
                head=references.get(EpochKey(row.head_branch or "", row.head_epoch or 0)),
            )
            for row in rows.values()
        }
        for branch, epoch, state in self._session.execute(
            select(Epoch.branch, Epoch.epoch, Epoch.state).where(Epoch.state != State.ABORTED.value)
        ):
            if state in (State.PREPARED, State.COMMITTED):
                found[branch].decided.add(epoch)
            if state != State.COMMITTED and rows[branch].application not in deleted:
                found[branch].open.add(epoch)
        for folded in FoldingRepository(self._session).ranges(found):
            found[folded.branch].decided.update(range(folded.first, folded.last + 1))
        return found

    def _in_use(self) -> Iterable[str]:
        for arguments in self._session.scalars(select(Operation.arguments).where(Operation.state == "running")):
            if isinstance(arguments.get("branch"), str):
                yield arguments["branch"]


def _chunks(keys: Iterable[EpochKey]) -> Iterator[list[tuple[str, int]]]:
    pairs = [(key.branch, key.epoch) for key in keys]
    for start in range(0, len(pairs), _AT_ONCE):
        yield pairs[start : start + _AT_ONCE]


def _lineage(rows: Mapping[str, Branch], branch: Branch) -> Iterable[str]:
    current: Branch | None = branch
    while current is not None:
        yield current.id
        current = rows.get(current.parent_branch) if current.parent_branch else None


@dataclass(frozen=True)
class Horizon:
    """Retention of an application. ``lineage``: its branches, each with its last epoch (``None``: all)."""

    lineage: Mapping[str, int | None]
    oldest: int | None
    """The lowest retained epoch number of the lineage; ``None`` if all are retained."""
    since: datetime | None
    """Snapshots committed before this time have expired; ``None`` if age does not matter."""
    aged_before: datetime | None
    latest: EpochKey | None
    """The latest committed snapshot, which never expires."""
    epochs: int
    """``retained_epochs``."""

    def __str__(self) -> str:
        """A sentence for messages."""
        kept = f"the latest {self.epochs} committed epochs are retained"
        if self.oldest is not None:
            kept += f", the oldest of which is {self.oldest}"
        if self.aged_before is not None:
            kept += f", and none committed before {self.aged_before:%Y-%m-%d %H:%M} UTC"
        return kept

    def retains(self, key: EpochKey, committed_at: datetime) -> bool:
        """Return whether a committed snapshot of the lineage, or of another branch of the application, is retained."""
        if key == self.latest:
            return True
        if self.aged_before is not None and committed_at < self.aged_before:
            return False
        if key.branch in self.lineage and key.epoch <= (self.lineage[key.branch] or key.epoch):
            return self.oldest is None or key.epoch >= self.oldest
        return self.since is None or committed_at >= self.since


def horizon_of(session: Session, application: Application) -> Horizon:
    """Retention of the application by its latest version's configuration."""
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
    """Snapshots that are retained regardless of age, for all existing applications; may contain duplicates."""
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
    """Parents of drained heads: an application can continue only from these."""
    heads = select(Branch.id, Epoch).join(
        Epoch, and_(Epoch.branch == Branch.head_branch, Epoch.epoch == Branch.head_epoch)
    )
    for branch, head in session.execute(heads.where(Epoch.opened_for.is_not(None))):
        parent = key_of(head.parent_branch, head.parent_epoch)
        if branch in branches and parent is not None and is_drained(head):
            yield parent


def is_held(session: Session, key: EpochKey) -> bool:
    """Like :func:`held`, for one snapshot."""
    return any(other == key for other in held(session))


def live_branches(session: Session) -> Mapping[str, Branch]:
    """Current branches of applications and executions, and all their ancestors."""
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
