"""Snapshots of applications, as they are named: by epoch, savepoint, tag or time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.declarations.names import alternatives
from epochal.engine.epoch import State
from epochal.errors import InvalidInput, NotFound, SnapshotExpired
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.folding import FoldingRepository, check_not_collected
from epochal.service.catalog.lineage import SNAPSHOTS, Segment, committed_head, segment_of, segments
from epochal.service.catalog.models import Application, Branch, Epoch, FoldedEpochs, Savepoint, SnapshotTag
from epochal.service.catalog.records import manifest_of
from epochal.service.catalog.retention import horizon_of, is_held
from epochal.service.catalog.savepoints import SavepointRepository
from epochal.service.catalog.types import now
from epochal.service.domain.pages import PageRequest, Part, cut
from epochal.wire.projects import full_name, project_of

HEAD = "head"
_NAME = re.compile(
    r"(?:(?P<application>[a-z][-a-z0-9]{0,62}):)?(?:(?P<epoch>[0-9]{1,18})|(?P<name>[a-z][-a-z0-9]{0,62}))"
)
_MEANINGS = ("epoch", "savepoint", "tag", "at")
_OWN = (
    select(Epoch)
    .join(Branch, Branch.id == Epoch.branch)
    .join(Application, Application.id == Branch.application)
    .where(Epoch.branch == bindparam("branch"), Epoch.epoch == bindparam("epoch"))
    .where(Application.name == bindparam("application"), Application.deleted_at.is_(None))
)
"""An epoch on a branch of the application itself. Built once, because look-ups of windows use it."""


def _other(application: str, named: str | None) -> str:
    """A name without project refers to the project of the application beside it."""
    return application if named is None else full_name(project_of(application), named)


class SnapshotRepository:
    """Epochs and snapshots of an application's lineage: its branch and the ancestors of that."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def decided(self, application: str, epoch: int) -> EpochKey:
        """The snapshot of this epoch of the application's lineage, including expired ones. Raises ``NotFound``."""
        row = self.epoch(ApplicationRepository(self._session).named(application), epoch)
        if State(row.state) not in SNAPSHOTS:
            raise NotFound(f"Epoch {epoch} of application {application!r} is {row.state}: it has no snapshot.")
        return EpochKey(row.branch, row.epoch)

    def resolve(
        self,
        application: Application,
        epoch: int | None,
        savepoint: str | None,
        tag: str | None = None,
        at: datetime | None = None,
    ) -> ManifestReference:
        """The committed snapshot named by one of the four; ``at``: the newest of the lineage at that time.

        Raises ``NotFound``, ``SnapshotExpired``, ``InvalidInput``.
        """
        named = [name for name, value in zip(_MEANINGS, (epoch, savepoint, tag, at), strict=True) if value is not None]
        if len(named) != 1:
            raise InvalidInput(
                f"Specify one of epoch, savepoint, tag and at, not {' and '.join(named) or 'none of them'}."
            )
        if savepoint is not None:
            key = SavepointRepository(self._session).get(application, savepoint).key
            return self.readable(application, self.row(key), held=True)
        if tag is not None:
            return self.readable(application, self._tagged(application, tag))
        if at is not None:
            return self.readable(application, self._committed_by(application, at))
        assert epoch is not None  # the only one given
        return self.readable(application, self.epoch(application, epoch))

    def named(self, application: str, text: str) -> ManifestReference:
        """The committed snapshot of ``application`` that the text names: ``12``, ``monday`` (a savepoint or tag),
        ``head``; ``again:12`` names one of another application.

        Savepoints take precedence over tags, and both over ``head``, the latest committed epoch. Raises
        ``InvalidInput``, ``NotFound``, ``SnapshotExpired``.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise InvalidInput(
                f"{text[:80]!r} is not the name of a snapshot: give an epoch, a savepoint, a tag or {HEAD!r}; for "
                "another application, NAME:EPOCH."
            )
        row = ApplicationRepository(self._session).named(_other(application, match["application"]))
        if match["epoch"] is not None:
            return self.resolve(row, int(match["epoch"]), None)
        name = match["name"]
        if self._session.get(Savepoint, (row.id, name)) is not None:
            return self.resolve(row, None, name)
        if self._session.get(SnapshotTag, (row.id, name)) is not None:
            return self.resolve(row, None, None, tag=name)
        if name == HEAD:
            return self._head(row)
        known = [
            *self._session.scalars(select(Savepoint.name).where(Savepoint.application == row.id)),
            *self._session.scalars(select(SnapshotTag.name).where(SnapshotTag.application == row.id)),
        ]
        raise NotFound(f"Application {row.name!r} has no savepoint and no tag {name!r}.{alternatives(name, known)}")

    def head(self, application: Application) -> Epoch | None:
        """The latest committed snapshot of the lineage."""
        key = committed_head(self._session, self._branch(application))
        return None if key is None else self.row(key)

    def row(self, key: EpochKey) -> Epoch:
        """The row of an existing epoch."""
        return self._session.get_one(Epoch, (key.branch, key.epoch))

    def find(self, key: EpochKey) -> Epoch | None:
        return self._session.get(Epoch, (key.branch, key.epoch))

    def epoch(self, application: Application, epoch: int) -> Epoch:
        """An epoch of the lineage, or of a branch that was left by a rollback, in any state. Raises ``NotFound``."""
        segment = segment_of(self._session, self._branch(application), epoch)
        row = None
        if segment.last is None or epoch <= segment.last:
            row = self._session.get(Epoch, (segment.branch.id, epoch))
        row = row or self._left_behind(application, epoch)
        if row is None:
            self._check_not_folded(application, epoch)
            raise NotFound(f"Application {application.name!r} has no epoch {epoch}{self._latest(application)}.")
        return row

    def readable(self, application: Application, row: Epoch, held: bool = False) -> ManifestReference:
        """The manifest of a committed snapshot whose files exist. Raises ``NotFound``, ``SnapshotExpired``."""
        reference = manifest_of(row)
        if row.state != State.COMMITTED or reference is None:
            raise NotFound(f"Epoch {row.epoch} of application {application.name!r} is {row.state}, not committed.")
        if row.collected_at is not None:
            raise SnapshotExpired(
                f"Epoch {row.epoch} of application {application.name!r} was collected at "
                f"{row.collected_at:%Y-%m-%d %H:%M} UTC: its files are deleted. Use a later epoch, or a savepoint."
            )
        if not held:
            self.check_retained(application, reference.key)
        return reference

    def ancestor(self, application: Application, snapshot: Epoch, epoch: int) -> EpochKey:
        """Epoch number ``epoch`` among the ancestors of ``snapshot``. Raises ``InvalidInput`` if there is none,
        ``SnapshotExpired``."""
        for segment in segments(self._session, self._session.get_one(Branch, snapshot.branch)):
            last = snapshot.epoch if segment.branch.id == snapshot.branch else segment.last
            row = self._session.get(Epoch, (segment.branch.id, epoch))
            if (last is None or epoch <= last) and epoch < snapshot.epoch:
                if row is not None:
                    self.readable(application, row)
                    return EpochKey(row.branch, row.epoch)
                FoldingRepository(self._session).check_not_folded(EpochKey(segment.branch.id, epoch))
        raise InvalidInput(
            f"Epoch {epoch} is not an ancestor of epoch {snapshot.epoch} of application {application.name!r}."
        )

    def _head(self, application: Application) -> ManifestReference:
        row = self.head(application)
        if row is None:
            raise NotFound(f"Application {application.name!r} has not committed an epoch yet.")
        return self.reference(EpochKey(row.branch, row.epoch))

    def _latest(self, application: Application) -> str:
        head = self.head(application)
        return ": it has committed none yet" if head is None else f"; the latest committed epoch is {head.epoch}"

    def _left_behind(self, application: Application, epoch: int) -> Epoch | None:
        """Epoch numbers are unique within an application, so the number identifies the branch."""
        branches = select(Branch.id).where(Branch.application == application.id)
        return self._session.scalars(select(Epoch).where(Epoch.branch.in_(branches), Epoch.epoch == epoch)).first()

    def _check_not_folded(self, application: Application, epoch: int) -> None:
        branches = {segment.branch.id for segment in segments(self._session, self._branch(application))}
        branches |= set(self._session.scalars(select(Branch.id).where(Branch.application == application.id)))
        for branch in branches:
            FoldingRepository(self._session).check_not_folded(EpochKey(branch, epoch))

    def _tagged(self, application: Application, name: str) -> Epoch:
        tag = self._session.get(SnapshotTag, (application.id, name))
        if tag is None:
            known = self._session.scalars(select(SnapshotTag.name).where(SnapshotTag.application == application.id))
            raise NotFound(f"Application {application.name!r} has no tag {name!r}.{alternatives(name, known)}")
        return self._session.get_one(Epoch, (tag.branch, tag.epoch))

    def _committed_by(self, application: Application, at: datetime) -> Epoch:
        """The newest epoch of the lineage that was committed at or before ``at``."""
        if at > now():
            raise InvalidInput(f"{_utc(at)} is in the future; leave `at` out to read the latest state.")
        for segment in segments(self._session, self._branch(application)):
            query = self._in(segment).where(Epoch.state == State.COMMITTED.value, Epoch.committed_at <= at)
            row = self._session.scalars(query.order_by(Epoch.epoch.desc()).limit(1)).first()
            if row is not None:
                return row
        first = self._first_commit(application)
        known = "it has not committed an epoch yet" if first is None else f"its first epoch was committed at {first}"
        raise NotFound(f"Application {application.name!r} had no committed state at {_utc(at)}: {known}.")

    def _first_commit(self, application: Application) -> str | None:
        times: list[datetime] = []
        for segment in segments(self._session, self._branch(application)):
            query = self._in(segment).where(Epoch.state == State.COMMITTED.value)
            row = self._session.scalars(query.order_by(Epoch.epoch).limit(1)).first()
            times += [row.committed_at] if row is not None and row.committed_at is not None else []
        return _utc(times[-1]) if times else None

    def page(self, application: Application, page: PageRequest, states: Sequence[State]) -> Part:
        """Listed newest first. The cursor is an epoch number, since numbers increase along the lineage."""
        after = page.after(int)
        rows: list[Epoch] = []
        for segment in segments(self._session, self._branch(application)):
            query = self._in(segment).where(Epoch.state.in_([state.value for state in states]))
            if after is not None:
                query = query.where(Epoch.epoch < after[0])
            query = query.order_by(Epoch.epoch.desc()).limit(page.limit + 1 - len(rows))
            rows += self._session.scalars(query).all()
            if len(rows) > page.limit:
                break
        return cut(rows, page, lambda row: [row.epoch])

    def folded(
        self, application: Application, part: Part, page: PageRequest, states: Sequence[State]
    ) -> list[FoldedEpochs]:
        """Ranges of folded epochs with one of these states that lie between the rows of this page or after its last
        row; newest first."""
        after = page.after(int)
        oldest = part.rows[-1].epoch if part.next_cursor is not None else -1
        found: list[FoldedEpochs] = []
        for segment in segments(self._session, self._branch(application)):
            for range in FoldingRepository(self._session).ranges([segment.branch.id]):
                of_lineage = segment.last is None or range.last <= segment.last
                counts = {State.COMMITTED: range.committed, State.ABORTED: range.aborted}
                has_some = any(counts.get(state) for state in states)
                if has_some and of_lineage and range.last > oldest and (after is None or range.last < after[0]):
                    found.append(range)
        return found

    def prepared(self, application: Application) -> Sequence[Epoch]:
        """Prepared epochs of the current branch, oldest first."""
        query = select(Epoch).where(Epoch.branch == application.branch, Epoch.state == State.PREPARED.value)
        return self._session.scalars(query.order_by(Epoch.epoch)).all()

    def of_application(self, application: str, key: EpochKey) -> ManifestReference:
        """The manifest of a snapshot of the application's lineage, or of a branch that a rollback left.

        For keys that come from outside the catalog. Raises ``NotFound`` for any other key, and for an unknown
        application.
        """
        named = {"branch": key.branch, "epoch": key.epoch, "application": application}
        row = self._session.scalars(_OWN, named).one_or_none() or self._inherited(application, key)
        reference = None if row is None else manifest_of(row)
        if reference is None:
            raise NotFound(f"Application {application!r} has no snapshot {key}.")
        return reference

    def _inherited(self, application: str, key: EpochKey) -> Epoch | None:
        """An epoch at which a branch of the application was forked, or an earlier one."""
        owner = ApplicationRepository(self._session).named(application)
        for branch in self._session.scalars(select(Branch).where(Branch.application == owner.id)):
            for segment in segments(self._session, branch):
                if segment.branch.id == key.branch and (segment.last is None or key.epoch <= segment.last):
                    return self.find(key)
        return None

    def reference(self, key: EpochKey) -> ManifestReference:
        """The manifest of a snapshot whose key comes from the catalog."""
        row = self.find(key)
        reference = None if row is None else manifest_of(row)
        if reference is None:
            raise NotFound(f"There is no snapshot {key}.")
        return reference

    def check_retained(self, application: Application, key: EpochKey) -> None:
        """Raises ``SnapshotExpired`` if the snapshot was collected, or is neither retained nor held.

        ``key``: a committed snapshot of the application's lineage, or of another of its branches.
        """
        row = self._session.get_one(Epoch, (key.branch, key.epoch), populate_existing=True)
        check_not_collected(row)
        horizon = horizon_of(self._session, application)
        if row.committed_at is not None and horizon.retains(key, row.committed_at):
            return
        if is_held(self._session, key):
            return
        raise SnapshotExpired(
            f"Epoch {key.epoch} of application {application.name!r} has expired: {horizon}. Pin snapshots, or "
            "create savepoints, to retain them longer."
        )

    def _branch(self, application: Application) -> Branch:
        return self._session.get_one(Branch, application.branch, populate_existing=True)

    @staticmethod
    def _in(segment: Segment) -> Select[Epoch]:
        query = select(Epoch).where(Epoch.branch == segment.branch.id)
        return query if segment.last is None else query.where(Epoch.epoch <= segment.last)


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
