"""Rollbacks: the epochs that one leaves behind, the move of an application to a new branch, and what that branch takes
over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import Change, EpochRange, Failure, ManifestReference, Succession
from epochal.contracts.configuration import Acceptance
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import Conflict, SnapshotExpired
from epochal.faults import declare
from epochal.service.catalog.branch_writer import following_epoch
from epochal.service.catalog.executions import BranchOrigin, add_branch
from epochal.service.catalog.folding import folded_between
from epochal.service.catalog.installations import InstallationRepository
from epochal.service.catalog.lineage import segments
from epochal.service.catalog.models import Application, Branch, Epoch, Execution, Operation, Version
from epochal.service.catalog.records import head_of, json_of
from epochal.service.catalog.types import now
from epochal.service.catalog.versions import VersionRepository

MOVING = declare("rollback.moving", "the application has stopped, and is still on its previous branch")
MOVED = declare("rollback.moved", "the application is on its new branch, in a transaction that is not committed")


class NotConfirmed(Conflict):
    """Sinks show epochs that the rollback leaves behind; review its plan, and confirm it."""

    slug = "rollback-not-confirmed"


@dataclass(frozen=True)
class Stretch:
    """Committed epochs of one branch after ``after``, up to ``until`` (``None``: all)."""

    branch: str
    after: int
    until: int | None


@dataclass(frozen=True)
class LeftBehind:
    """Committed epochs of the current lineage that are not in the target's, newest stretch first."""

    epochs: int
    first: int | None
    last: int | None
    stretches: Sequence[Stretch]

    @property
    def spans(self) -> Mapping[str, EpochRange]:
        """Numbers of the epochs, by branch."""
        return {
            each.branch: EpochRange(first=each.after + 1, last=2**63 - 1 if each.until is None else each.until)
            for each in self.stretches
        }


class RollbackRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def left_behind(self, branch: Branch, target: EpochKey) -> LeftBehind:
        stretches = list(self._stretches(branch, target))
        summary = select(func.count(), func.min(Epoch.epoch), func.max(Epoch.epoch))
        counts = [self._session.execute(_in(stretch, summary)).one() for stretch in stretches]
        numbers = [number for _, first, last in counts for number in (first, last) if number is not None]
        folded = [folded_between(self._session, stretch.branch, stretch.after, stretch.until) for stretch in stretches]
        numbers += [number for _, ranges in folded for range in ranges for number in (range.oldest, range.last)]
        epochs = sum(count for count, _, _ in counts) + sum(count for count, _ in folded)
        return LeftBehind(epochs, min(numbers, default=None), max(numbers, default=None), stretches)

    def predates_restore(self, branch: Branch) -> bool:
        """Return whether sinks may show epochs of the branch that the catalog lacks."""
        installation = InstallationRepository(self._session).find()
        restored_at = None if installation is None else installation.restored_at
        return restored_at is not None and branch.created_at < restored_at

    def last_number(self, branch: Branch) -> int:
        """The highest epoch number of the application."""
        return following_epoch(self._session, branch) - 1

    def lose(self, branch: Branch, last: int) -> None:
        """Record that epochs up to ``last`` existed and were lost, so that their numbers are not reused."""
        application = self._session.get_one(Application, branch.application)
        failure = Failure(
            type="lost", message="A restore from a backup lost the epochs up to this one; sinks show them."
        )
        moment = now()
        row = Epoch(branch=branch.id, epoch=last, execution=application.execution, attempt=branch.attempt)
        row.state, row.failure, row.started_at = State.ABORTED.value, json_of(failure), moment
        self._session.add(row)
        branch.aborted_epochs += 1
        self._session.flush()

    def manifests(self, left: LeftBehind) -> list[ManifestReference]:
        """Manifests of the epochs that are left behind, except collected ones."""
        columns = select(Epoch.branch, Epoch.epoch, Epoch.manifest_path, Epoch.manifest_sha256)
        columns = columns.where(Epoch.collected_at.is_(None))
        rows = (row for stretch in left.stretches for row in self._session.execute(_in(stretch, columns)))
        return [
            ManifestReference(branch=branch, epoch=epoch, path=path, sha256=sha256)
            for branch, epoch, path, sha256 in rows
            if path is not None
        ]

    def targets(self, left: LeftBehind) -> set[tuple[str, str]]:
        """Sinks with their targets, of all versions that ran epochs that are left behind."""
        found: set[tuple[str, str]] = set()
        for stretch in left.stretches:
            versions = select(Branch.application, func.coalesce(Epoch.version, Execution.version)).distinct()
            versions = versions.join(Branch, Branch.id == Epoch.branch).join(Execution, Execution.id == Epoch.execution)
            for application, number in self._session.execute(_in(stretch, versions)).all():
                version = self._session.get(Version, (application, number))
                found.update(version.graph["sinks"].items() if version is not None and version.graph else ())
        return found

    def _stretches(self, branch: Branch, target: EpochKey) -> Iterator[Stretch]:
        """The current lineage, back to its common ancestor with the target."""
        stands_on = {
            segment.branch.id: segment.last
            for segment in segments(self._session, self._session.get_one(Branch, target.branch))
        }
        stands_on[target.branch] = target.epoch
        for segment in segments(self._session, branch):
            meeting = stands_on.get(segment.branch.id)
            if meeting is None:
                yield Stretch(segment.branch.id, -1, segment.last)
                continue
            if segment.last is None or segment.last > meeting:
                yield Stretch(segment.branch.id, meeting, segment.last)
            return


def roll_back(session: Session, application: Application, operation: Operation) -> dict[str, Any]:
    """Create a branch at the snapshot named by the operation, within a write transaction; returns the operation's
    result.

    Raises ``Conflict`` while a decided epoch is not committed in every sink, because it could not be committed
    afterwards; ``SnapshotExpired`` if the snapshot has been collected.
    """
    MOVING.hit()
    order = operation.arguments
    target = EpochKey(order["branch"], order["epoch"])
    row = session.get_one(Epoch, (target.branch, target.epoch), populate_existing=True)
    if row.collected_at is not None:
        raise SnapshotExpired(f"Snapshot {target} was collected in the meantime. Roll back to a later epoch.")
    left = session.get_one(Branch, application.branch, populate_existing=True)
    check_committed(session, application, left)
    head = head_of(left)
    origin = BranchOrigin("rollback", target, order.get("message"))
    branch = add_branch(session, application, origin, operation.created_by)
    VersionRepository(session).accept(application, Acceptance.model_validate(order.get("acceptance") or {}))
    branch.origin = {
        MOVE_ASIDE: bool(order.get(MOVE_ASIDE)),
        "left": None if head is None else {"branch": head.branch, "epoch": head.epoch},
    }
    session.flush()
    MOVED.hit()
    return {
        "branch": branch.id,
        "parent": {"branch": target.branch, "epoch": target.epoch},
        "left": branch.origin["left"],
    }


def check_committed(session: Session, application: Application, branch: Branch) -> None:
    """Raises ``Conflict`` unless every decided epoch of the branch is committed in every sink."""
    prepared = select(func.count(), func.min(Epoch.epoch)).where(
        Epoch.branch == branch.id, Epoch.state == State.PREPARED.value
    )
    count, first = session.execute(prepared).one()
    if count:
        raise Conflict(
            f"Application {application.name!r} has {count} decided epochs (the first is {first}) that are not "
            "committed in every sink. Start it to commit them, or end them (`epochal transaction`); then roll it "
            "back."
        )


def _in(stretch: Stretch, query: Select) -> Select:  # type: ignore[type-arg]
    query = query.where(
        Epoch.branch == stretch.branch, Epoch.epoch > stretch.after, Epoch.state == State.COMMITTED.value
    )
    return query if stretch.until is None else query.where(Epoch.epoch <= stretch.until)


MOVE_ASIDE = "move_aside"
"""Key in the origin of a rollback's branch: whether sinks hide the epochs that are left behind."""


def begun_with(branch: Branch) -> Change | None:
    """The change with which a branch began, if it began at a snapshot."""
    if branch.parent_branch is None:
        return None
    detail: dict[str, Any] = {"branch": branch.parent_branch, "epoch": branch.parent_epoch, "by": branch.created_by}
    if branch.message is not None:
        detail["message"] = branch.message
    if branch.kind == "import" and branch.origin is not None:
        detail["origin"] = branch.origin
    return Change(kind=branch.kind, detail=detail)


def succession_of(session: Session, branch: Branch) -> Succession | None:
    """``None`` if no other branch of the application has an epoch."""
    numbers = {id: found for id, found in _numbers(session, branch.application).items() if id != branch.id}
    if not numbers:
        return None
    return Succession(
        branches=tuple(sorted(numbers)),
        left_behind=_left_behind(session, branch, numbers),
        last=max(found.last for found in numbers.values()),
        move_aside=bool((branch.origin or {}).get(MOVE_ASIDE)),
    )


def _numbers(session: Session, application: str) -> dict[str, EpochRange]:
    """First and last epoch of each branch of an application, in any state."""
    first, last = (
        select(bound(Epoch.epoch)).where(Epoch.branch == Branch.id).correlate(Branch).scalar_subquery()
        for bound in (func.min, func.max)
    )
    rows = session.execute(select(Branch.id, first, last).where(Branch.application == application))
    return {id: EpochRange(first=first, last=last) for id, first, last in rows if first is not None}


def _left_behind(session: Session, branch: Branch, numbers: Mapping[str, EpochRange]) -> tuple[EpochRange, ...]:
    stands_on = {segment.branch.id: segment.last for segment in segments(session, branch)}
    found = []
    for id, used in numbers.items():
        last = stands_on.get(id)
        first = used.first if last is None else max(used.first, last + 1)
        if first <= used.last:
            found.append(EpochRange(first=first, last=used.last))
    return tuple(sorted(found, key=lambda numbers: numbers.first))
