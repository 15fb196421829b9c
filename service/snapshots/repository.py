from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import InvalidInput, NotFound, SnapshotExpired
from epochal.service.applications.configuration import ApplicationConfiguration
from epochal.service.applications.repository import check_one_of
from epochal.service.catalog.executions import latest_version
from epochal.service.catalog.lineage import Segment, segment_of, segments
from epochal.service.catalog.models import Application, Branch, Epoch, Savepoint
from epochal.service.catalog.records import manifest_of
from epochal.service.pagination import PageRequest, Part, cut
from epochal.service.savepoints.repository import SavepointRepository

SNAPSHOTS = (State.PREPARED, State.COMMITTED)


class SnapshotRepository:
    """Epochs and snapshots of an application's lineage: its branch, and what that was forked from."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def resolve(self, application: Application, epoch: int | None, savepoint: str | None) -> ManifestReference:
        """The committed snapshot that is meant. ``NotFound``, ``SnapshotExpired``, ``InvalidInput``."""
        check_one_of(epoch, savepoint)
        if savepoint is not None:
            return SavepointRepository(self._session).get(application, savepoint).manifest
        if epoch is None:
            raise InvalidInput("Give an epoch or a savepoint.")
        row = self.epoch(application, epoch)
        reference = manifest_of(row)
        if row.state != State.COMMITTED or reference is None:
            raise NotFound(f"Epoch {epoch} of application {application.name!r} is {row.state}, not committed.")
        self.check_retained(application, reference.key)
        return reference

    def epoch(self, application: Application, epoch: int) -> Epoch:
        """In any state. ``NotFound``."""
        segment = segment_of(self._session, self._branch(application), epoch)
        row = None
        if segment.last is None or epoch <= segment.last:
            row = self._session.get(Epoch, (segment.branch.id, epoch))
        if row is None:
            raise NotFound(f"Application {application.name!r} has no epoch {epoch}.")
        return row

    def page(self, application: Application, page: PageRequest, states: Sequence[State]) -> Part:
        """Newest first; numbers rise along the lineage, so a number is the cursor."""
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

    def prepared(self, application: Application) -> Sequence[ManifestReference]:
        """Of the current branch, prepared and not committed, oldest first."""
        query = select(Epoch).where(Epoch.branch == application.branch, Epoch.state == State.PREPARED.value)
        rows = self._session.scalars(query.order_by(Epoch.epoch)).all()
        return [reference for row in rows if (reference := manifest_of(row)) is not None]

    def reference(self, key: EpochKey) -> ManifestReference:
        row = self._session.get(Epoch, (key.branch, key.epoch))
        reference = None if row is None else manifest_of(row)
        if reference is None:
            raise NotFound(f"There is no snapshot {key}.")
        return reference

    def check_retained(self, application: Application, key: EpochKey) -> None:
        """Raises ``SnapshotExpired`` past the retention, unless a savepoint or a branch stands on the snapshot."""
        version = latest_version(self._session, application.id)
        retained = ApplicationConfiguration.model_validate(version.configuration).retained_epochs
        oldest = self._oldest_retained(application, retained)
        if oldest is None or key.epoch >= oldest or self._held(key):
            return
        raise SnapshotExpired(
            f"Epoch {key.epoch} of application {application.name!r} has expired: the latest {retained} committed "
            f"epochs are kept, the oldest of them is {oldest}. Make savepoints of what shall be kept longer."
        )

    def _oldest_retained(self, application: Application, retained: int) -> int | None:
        """``None`` when nothing has expired yet."""
        missing = retained
        for segment in segments(self._session, self._branch(application)):
            query = self._in(segment).where(Epoch.state == State.COMMITTED.value).with_only_columns(Epoch.epoch)
            numbers = self._session.scalars(query.order_by(Epoch.epoch.desc()).limit(missing)).all()
            missing -= len(numbers)
            if missing == 0:
                return numbers[-1]
        return None

    def _held(self, key: EpochKey) -> bool:
        savepoint = select(Savepoint.name).where(Savepoint.branch == key.branch, Savepoint.epoch == key.epoch)
        fork = select(Branch.id).where(Branch.parent_branch == key.branch, Branch.parent_epoch == key.epoch)
        return any(self._session.scalars(query.limit(1)).first() is not None for query in (savepoint, fork))

    def _branch(self, application: Application) -> Branch:
        return self._session.get_one(Branch, application.branch, populate_existing=True)

    @staticmethod
    def _in(segment: Segment) -> Select[Epoch]:
        query = select(Epoch).where(Epoch.branch == segment.branch.id)
        return query if segment.last is None else query.where(Epoch.epoch <= segment.last)
