"""Lineages of snapshots (a branch, its parent, and so on to the root), and the tree of branches that they form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from operator import attrgetter
from typing import cast

from sqlalchemy import ColumnElement, Select, and_, false, func, or_, select, tuple_
from sqlalchemy.orm import Session

from epochal.contracts.catalog import Change, EpochState
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.service.catalog.folding import FoldingRepository, folded_between
from epochal.service.catalog.models import (
    Application,
    Artifact,
    Branch,
    Epoch,
    Execution,
    FoldedEpochs,
    Operation,
    Savepoint,
    SnapshotMessage,
    SnapshotPin,
    SnapshotTag,
    Version,
)
from epochal.service.catalog.records import changes_of, key_of
from epochal.service.domain.lineage import ListedSnapshot, Run, RunSummary
from epochal.service.domain.pages import PageRequest, Part, cut
from epochal.service.domain.snapshots import SnapshotOrigin
from epochal.wire.projects import local_name

SNAPSHOTS = (State.PREPARED, State.COMMITTED)
_STATES = [state.value for state in SNAPSHOTS]
_AT_ONCE = 400
"""Maximum number of keys in one query, since databases limit the number of parameters."""


@dataclass(frozen=True)
class Segment:
    """The part of a lineage on one branch: its epochs up to ``last`` inclusive (``None``: all)."""

    branch: Branch
    last: int | None


@dataclass(frozen=True)
class EpochSpan:
    """Epochs ``first`` to ``last`` of a branch, both included; ``None``: from the start, or up to the head."""

    branch: str
    first: int | None = None
    last: int | None = None

    @property
    def conditions(self) -> list[ColumnElement[bool]]:
        lower = [] if self.first is None else [Epoch.epoch >= self.first]
        return [*lower, *([] if self.last is None else [Epoch.epoch <= self.last])]


def segments(session: Session, branch: Branch) -> Iterator[Segment]:
    """The lineage of ``branch``, newest segment first."""
    last: int | None = None
    current: Branch | None = branch
    while current is not None:
        yield Segment(current, last)
        last = current.parent_epoch
        current = session.get(Branch, current.parent_branch) if current.parent_branch else None


def segment_of(session: Session, branch: Branch, epoch: int) -> Segment:
    """The segment that contains epoch number ``epoch`` of the lineage; numbers increase along a lineage."""
    last = None
    for segment in segments(session, branch):
        last = segment
        if segment.branch.parent_epoch is None or epoch > segment.branch.parent_epoch:
            break
    assert last is not None  # a branch is its own first segment
    return last


def committed_head(session: Session, branch: Branch) -> EpochKey | None:
    """The latest committed epoch of the lineage."""
    for segment in segments(session, branch):
        query = select(Epoch.epoch).where(Epoch.branch == segment.branch.id, Epoch.state == State.COMMITTED.value)
        if segment.last is not None:
            query = query.where(Epoch.epoch <= segment.last)
        epoch = session.scalar(query.order_by(Epoch.epoch.desc()).limit(1))
        if epoch is not None:
            return EpochKey(segment.branch.id, epoch)
    return None


class LineageRepository:
    """The tree of branches that an application belongs to: its ancestors and their descendants."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def tree(self, application: Application) -> Mapping[str, Branch]:
        """All branches connected to the application's branch, by id."""
        found: dict[str, Branch] = {}
        looking = list(self._session.scalars(select(Branch).where(Branch.application == application.id)))
        while looking:
            found.update({branch.id: branch for branch in looking})
            parents = {branch.parent_branch for branch in looking if branch.parent_branch} - found.keys()
            ids = [branch.id for branch in looking]
            near = select(Branch).where(Branch.id.in_(parents) | Branch.parent_branch.in_(ids))
            looking = [branch for branch in self._session.scalars(near) if branch.id not in found]
        return found

    def heads(self, branches: Mapping[str, Branch]) -> dict[str, EpochKey | None]:
        """Heads of the applications of these branches, by name. Deleted applications are left out."""
        query = (
            select(Application.name, Branch.head_branch, Branch.head_epoch)
            .join(Branch, Branch.id == Application.branch)
            .where(Application.id.in_({branch.application for branch in branches.values()}))
            .where(Application.deleted_at.is_(None))
        )
        return {local_name(name): key_of(branch, epoch) for name, branch, epoch in self._session.execute(query)}

    def page(self, branches: Iterable[str], page: PageRequest, span: EpochSpan | None = None) -> Part:
        """Snapshots of these branches, newest first; ``span``: only those."""
        rows: list[Epoch] = []
        order = attrgetter("prepared_at", "branch", "epoch")
        after = page.after(datetime, str, int)
        for branch in branches:
            # Per branch, the number of rows that a page could need, found by an index.
            query = select(Epoch).where(
                Epoch.branch == branch, Epoch.prepared_at.is_not(None), Epoch.state.in_(_STATES)
            )
            if span is not None:
                query = query.where(*span.conditions)
            if after is not None:
                query = query.where(_is_before(branch, *after))
            if len(rows) > page.limit:
                query = query.where(Epoch.prepared_at >= rows[-1].prepared_at)
            query = query.order_by(Epoch.prepared_at.desc(), Epoch.epoch.desc()).limit(page.limit + 1)
            rows = sorted([*rows, *self._session.scalars(query)], key=order, reverse=True)[: page.limit + 1]
        return cut(rows, page, order)

    def listed(self, branches: Mapping[str, Branch]) -> Sequence[ListedSnapshot]:
        """Snapshots that are listed individually, and the ends of each branch."""
        of_tree = (Epoch.branch.in_(branches), Epoch.state.in_(_STATES))
        keys = self._keys(select(Epoch.branch, Epoch.epoch).where(*of_tree, Epoch.changes.is_not(None)))
        prepared = Epoch.branch.in_(branches), Epoch.state == State.PREPARED.value
        keys |= self._keys(select(Epoch.branch, Epoch.epoch).where(*prepared))
        keys |= self._ends(branches) | self._first_of_versions(branches)
        for annotated in (Savepoint, SnapshotTag, SnapshotPin, SnapshotMessage):
            keys |= self._keys(select(annotated.branch, annotated.epoch).where(annotated.branch.in_(branches)))
        parents = (key_of(branch.parent_branch, branch.parent_epoch) for branch in branches.values())
        keys |= {(parent.branch, parent.epoch) for parent in parents if parent is not None}
        keys |= {(key.branch, key.epoch) for key in self.transactions() if key.branch in branches}
        return self._with_times(keys)

    def summary(self, run: Run) -> RunSummary | None:
        """The epochs between two listed snapshots; ``None`` if there are none. Folded epochs are counted where a row of
        the run follows them."""
        counted = (Epoch.rows_in, Epoch.rows_out, Epoch.state_rows, Epoch.state_bytes)
        query = select(
            func.count(), func.min(Epoch.epoch), func.max(Epoch.epoch), *(func.sum(column) for column in counted)
        ).where(*self._inside(run))
        number, first, last, *sums = self._session.execute(query).one()
        if not number:
            return None
        folded, ranges = folded_between(self._session, run.before.branch, run.after, last)
        for range in ranges:
            first = min(first, range.oldest)
            sums = [(value or 0) + getattr(range, column.key) for value, column in zip(sums, counted, strict=True)]
        return RunSummary(number + folded, first, last, *(int(value or 0) for value in sums))

    def folded_before(self, branches: Iterable[str]) -> Mapping[EpochKey, FoldedEpochs]:
        """Ranges of folded epochs by the snapshot that follows; ranges without committed epochs are left out."""
        ranges = FoldingRepository(self._session).ranges(branches)
        return {EpochKey(range.branch, range.last + 1): range for range in ranges if range.committed}

    def epochs_of(self, run: Run) -> Sequence[Epoch]:
        """Listed newest first."""
        query = select(Epoch).where(*self._inside(run)).order_by(Epoch.epoch.desc())
        return self._session.scalars(query).all()

    def rows(self, keys: Iterable[EpochKey]) -> Mapping[EpochKey, Epoch]:
        pairs = [(key.branch, key.epoch) for key in keys]
        query = select(Epoch).where(_are(pairs))
        return {EpochKey(row.branch, row.epoch): row for row in self._session.scalars(query)}

    def savepoints(self, keys: Iterable[EpochKey]) -> Mapping[EpochKey, list[str]]:
        pairs = [(key.branch, key.epoch) for key in keys]
        query = select(Savepoint).where(tuple_(Savepoint.branch, Savepoint.epoch).in_(pairs)).order_by(Savepoint.name)
        names: dict[EpochKey, list[str]] = defaultdict(list)
        for savepoint in self._session.scalars(query):
            names[EpochKey(savepoint.branch, savepoint.epoch)].append(savepoint.name)
        return names

    def transactions(self) -> Mapping[EpochKey, list[Change]]:
        """Decisions of administrators about single sinks' parts of epochs. A catalog has few of them."""
        query = select(Operation).where(Operation.kind == "transaction", Operation.state == "succeeded")
        found: dict[EpochKey, list[Change]] = defaultdict(list)
        for operation in self._session.scalars(query.order_by(Operation.id)):
            detail = dict(operation.arguments)
            key = EpochKey(detail.pop("branch"), detail.pop("epoch"))
            if detail["action"] != "retry":
                found[key].append(Change(kind="transaction", detail=detail))
        return found

    def versions(self, branches: Mapping[str, Branch]) -> Mapping[tuple[str, int], Version]:
        """All versions of the applications of the tree, by application id and number."""
        applications = {branch.application for branch in branches.values()}
        query = select(Version).where(Version.application.in_(applications))
        return {(version.application, version.number): version for version in self._session.scalars(query)}

    def origins(self, keys: Collection[EpochKey]) -> Mapping[EpochKey, SnapshotOrigin]:
        """Time, application, version and changes of snapshots, by key. Unknown snapshots are left out."""
        found: dict[EpochKey, SnapshotOrigin] = {}
        for pairs in _batches((key.branch, key.epoch) for key in keys):
            query = (
                select(Epoch, Application.name, Version, Artifact.filename)
                .join(Execution, Execution.id == Epoch.execution)
                .join(Application, Application.id == Execution.application)
                .join(
                    Version,
                    (Version.application == Execution.application)
                    & (Version.number == func.coalesce(Epoch.version, Execution.version)),
                )
                .join(Artifact, Artifact.sha256 == Version.artifact)
                .where(_are(pairs))
            )
            for row, application, version, filename in self._session.execute(query):
                found[EpochKey(row.branch, row.epoch)] = SnapshotOrigin(
                    application=local_name(application),
                    state=cast(EpochState, row.state),
                    committed_at=row.committed_at,
                    version=version.number,
                    artifact=version.artifact,
                    filename=filename,
                    parameters=version.parameters,
                    changes=changes_of(row),
                )
        return found | self._origins_of_folded(set(keys) - found.keys())

    def _origins_of_folded(self, keys: Collection[EpochKey]) -> dict[EpochKey, SnapshotOrigin]:
        """All epochs of a range have the same values except the time."""
        if not keys:
            return {}
        query = (
            select(FoldedEpochs, Application.name, Version, Artifact.filename)
            .join(Execution, Execution.id == FoldedEpochs.execution)
            .join(Application, Application.id == Execution.application)
            .join(
                Version,
                (Version.application == Execution.application)
                & (Version.number == func.coalesce(FoldedEpochs.version, Execution.version)),
            )
            .join(Artifact, Artifact.sha256 == Version.artifact)
            .where(FoldedEpochs.branch.in_({key.branch for key in keys}))
        )
        found: dict[EpochKey, SnapshotOrigin] = {}
        for range, application, version, filename in self._session.execute(query):
            origin = SnapshotOrigin(
                application=local_name(application),
                state="committed",
                committed_at=None,
                version=version.number,
                artifact=version.artifact,
                filename=filename,
                parameters=version.parameters,
                changes=(),
            )
            inside = (key for key in keys if key.branch == range.branch and range.first <= key.epoch <= range.last)
            found.update(dict.fromkeys(inside, origin))
        return found

    def _ends(self, branches: Collection[str]) -> set[tuple[str, int]]:
        """The first and last snapshot of each branch, found by an index."""
        ends = [
            select(bound(Epoch.epoch))
            .where(Epoch.branch == Branch.id, Epoch.state == state)
            .correlate(Branch)
            .scalar_subquery()
            for state in _STATES
            for bound in (func.min, func.max)
        ]
        query = select(Branch.id, *ends).where(Branch.id.in_(branches))
        return {(row[0], epoch) for row in self._session.execute(query) for epoch in row[1:] if epoch is not None}

    def _first_of_versions(self, branches: Collection[str]) -> set[tuple[str, int]]:
        first = (
            select(func.min(Epoch.epoch))
            .where(Epoch.branch == Branch.id, Epoch.version == Version.number)
            .correlate(Branch, Version)
            .scalar_subquery()
        )
        query = select(Branch.id, first).join(Version, Version.application == Branch.application)
        found = self._session.execute(query.where(Branch.id.in_(branches)))
        # Rows without a version are of the execution's version.
        unsaid = (
            select(Epoch.branch, func.min(Epoch.epoch))
            .join(Execution, Execution.id == Epoch.execution)
            .where(Epoch.branch.in_(branches), Epoch.version.is_(None), Epoch.prepared_at.is_not(None))
            .group_by(Epoch.branch, Execution.version)
        )
        return {(branch, epoch) for branch, epoch in found if epoch is not None} | self._keys(unsaid)

    def _keys(self, query: Select[str, int]) -> set[tuple[str, int]]:
        return {(branch, epoch) for branch, epoch in self._session.execute(query)}

    def _with_times(self, keys: set[tuple[str, int]]) -> Sequence[ListedSnapshot]:
        """Listed newest first. Keys of other epochs are left out."""
        found: list[ListedSnapshot] = []
        for pairs in _batches(keys):
            query = select(Epoch.branch, Epoch.epoch, Epoch.prepared_at).where(_are(pairs), Epoch.state.in_(_STATES))
            rows = self._session.execute(query)
            found += [ListedSnapshot(at, epoch, branch) for branch, epoch, at in rows if at is not None]
        return sorted(found, reverse=True)

    @staticmethod
    def _inside(run: Run) -> tuple[ColumnElement[bool], ...]:
        between = (Epoch.epoch > run.after, Epoch.epoch < run.before.epoch)
        return (Epoch.branch == run.before.branch, *between, Epoch.state.in_(_STATES))


def _is_before(branch: str, prepared_at: datetime, of: str, epoch: int) -> ColumnElement[bool]:
    """Return whether rows of ``branch`` come after this place in descending order."""
    if branch > of:
        return Epoch.prepared_at < prepared_at
    if branch < of:
        return Epoch.prepared_at <= prepared_at
    return or_(Epoch.prepared_at < prepared_at, and_(Epoch.prepared_at == prepared_at, Epoch.epoch < epoch))


def _are(pairs: Iterable[tuple[str, int]]) -> ColumnElement[bool]:
    """Conditions grouped by branch: for a list of pairs SQLite may scan all epochs of a branch."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for branch, epoch in pairs:
        numbers[branch].append(epoch)
    return or_(false(), *(and_(Epoch.branch == branch, Epoch.epoch.in_(found)) for branch, found in numbers.items()))


def _batches(keys: Iterable[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    remaining = iter(keys)
    while some := list(islice(remaining, _AT_ONCE)):
        yield some
