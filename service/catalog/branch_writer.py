"""Guarded writes to one branch. Each first updates the branch's row and names the attempt; no matching row means
fenced.

The functions run inside a write transaction of the caller; an exception rolls it back. The statements of
``epoch_statements.py`` carry out the writes of every epoch, and each contains its precondition. The reason is
determined only if a statement matches no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy import CursorResult, Row, func, select, update
from sqlalchemy.orm import Session

from epochal.contracts.catalog import EpochCounts, EpochTerms, Failure, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.contracts.measurements import MeasuredEpoch
from epochal.engine.epoch import Event, IllegalTransition, State, advance
from epochal.errors import Conflict, Fenced, InvalidInput
from epochal.service.catalog import epoch_statements as statements
from epochal.service.catalog.models import Aborted, Branch, Epoch, SkippedTotals
from epochal.service.catalog.records import (
    SKIPPED_COUNTS,
    columns_of,
    epoch_record,
    head_of,
    json_of,
    key_of,
    manifest_of,
    terms_of,
)
from epochal.service.catalog.types import now
from epochal.service.catalog.webhooks import enqueue
from epochal.service.domain.failures import cause_of
from epochal.wire.administration import WebhookKind


class ForeignManifest(InvalidInput):
    """The manifest named by a driver is not below the driver's own branch."""

    slug = "foreign-manifest"


def changed(session: Session, statement: Any) -> int:
    """Execute an UPDATE or DELETE; returns the number of matched rows. Objects in the session are not refreshed."""
    unsynchronised = statement.execution_options(synchronize_session=False)
    return cast("CursorResult[Any]", session.execute(unsynchronised)).rowcount


class BranchWriter:
    """Writes to branch ``branch`` by attempt ``attempt`` of ``execution``."""

    def __init__(self, session: Session, branch: str, execution: str, attempt: int) -> None:
        self._session = session
        self._branch = branch
        self._execution = execution
        self._attempt = attempt
        self.moved: Row[Any] | None = None
        """The row of the epoch whose state changed; ``None`` for a repeated call."""

    def begin(self) -> None:
        """R1. Take ownership of the branch and fence all earlier attempts."""
        taken = update(Branch).where(Branch.id == self._branch, Branch.attempt < self._attempt)
        if changed(self._session, taken.values(attempt=self._attempt, owned=True)) == 0:
            self.own()

    def lock(self) -> None:
        """Lock the branch until this transaction ends, regardless of its owner. Has to precede other locks."""
        self._session.get_one(Branch, self._branch, with_for_update=True, populate_existing=True)

    def own(self) -> Row[Any]:
        """Lock the branch for this transaction, and read what opening an epoch requires. Raises ``Fenced`` if the
        branch is not owned by this attempt."""
        row = self._run(statements.OWN).one_or_none()
        if row is None:
            raise self._fenced()
        return row

    def give_up(self) -> None:
        """Fence this attempt, even if it has not begun. Without effect if a later attempt has begun."""
        current = update(Branch).where(Branch.id == self._branch, Branch.attempt <= self._attempt)
        changed(self._session, current.values(attempt=self._attempt, owned=False))

    def open(self, epoch: int, parent: EpochKey | None) -> None:
        """E1."""
        branch = self.own()
        head = head_of(branch)
        opened = None
        if head == parent:
            opened = self._run(
                statements.OPEN,
                epoch=epoch,
                execution=self._execution,
                at=now(),
                application=branch.application,
                above=branch.parent_epoch or 0,
                **_parent_columns(parent),
            ).one_or_none()
        if opened is None:
            self._check_opened(epoch, parent, head)
        self.moved = opened

    def _check_opened(self, epoch: int, parent: EpochKey | None, head: EpochKey | None) -> None:
        """Raise the reason why the epoch was not opened, unless the call is repeated and it is open."""
        row = self._read(epoch)
        if row is not None:
            if row.state == State.STARTED and row.attempt == self._attempt and _parent(row) == parent:
                return
            raise Conflict(f"Epoch {self._key(epoch)} is {row.state} (attempt {row.attempt}); open a later one.")
        if head != parent:
            raise Conflict(f"Epoch {self._key(epoch)} cannot be opened on {parent}: the branch's head is {head}.")
        following = self.next_epoch()
        raise Conflict(
            f"Epoch {self._key(epoch)} cannot be opened: epoch numbers of a branch increase, and the "
            f"next is {following}."
        )

    def prepare(
        self,
        epoch: int,
        parent: EpochKey | None,
        manifest: ManifestReference,
        counts: EpochCounts,
        terms: EpochTerms,
    ) -> None:
        """E4, the commit decision; also for the first epoch of an upgrade."""
        if manifest.key != EpochKey(self._branch, epoch):
            raise Conflict(f"Epoch {self._key(epoch)} cannot be prepared with the manifest of {manifest.key}.")
        if not manifest.path.startswith(f"{self._branch}/"):
            raise ForeignManifest(
                f"Epoch {self._key(epoch)} cannot be prepared with the manifest {manifest.path!r}: the files of a "
                f"branch are below {self._branch}/, and a driver may name no others."
            )
        if self._run(statements.MOVE_HEAD, epoch=epoch, **_parent_columns(parent)).rowcount == 0:
            if self._has_landed(epoch, parent, manifest):
                return
            self.own()
            self._expect(epoch, Event.PREPARE)
            current = head_of(self._row())
            raise Conflict(f"Epoch {self._key(epoch)} cannot be prepared on {parent}: the head is {current}.")
        if terms.version is not None:
            self._run(statements.CHANGE_VERSION, execution=self._execution, version=terms.version)
        self.moved = self._run(
            statements.PREPARE,
            epoch=epoch,
            execution=self._execution,
            at=now(),
            manifest_path=manifest.path,
            manifest_sha256=manifest.sha256,
            **_parent_columns(parent),
            **terms_of(terms),
            **columns_of(counts),
        ).one_or_none()
        if self.moved is None:
            row = self._expect(epoch, Event.PREPARE)
            raise Conflict(
                f"Epoch {self._key(epoch)} cannot be prepared by attempt {self._attempt} on {parent}: "
                f"it was opened by attempt {row.attempt} on {_parent(row)}."
            )

    def _has_landed(self, epoch: int, parent: EpochKey | None, manifest: ManifestReference) -> bool:
        """Return whether this prepare is repeated because its answer was lost.

        Checked before the ownership of the branch: a driver that was fenced in between would otherwise conclude that
        the epoch is not decided, and delete its files.
        """
        row = self._read(epoch)
        if row is None or row.state not in (State.PREPARED, State.COMMITTED):
            return False
        return manifest_of(row) == manifest and _parent(row) == parent

    def commit(self, epoch: int) -> None:
        """E6. Epochs are committed in order, after their parents."""
        self.own()
        row = self._run(statements.COMMIT, epoch=epoch, at=now()).one_or_none()
        if row is None:
            self._check_committed(epoch)
            return
        self.moved = row
        self._run(statements.COUNT_COMMITTED, **{name: getattr(row, name) or 0 for name in statements.COUNTED})
        self._add_skipped(row)
        self._tell("epoch.committed", row)

    def _check_committed(self, epoch: int) -> None:
        """Raise the reason why the epoch was not committed, unless the call is repeated and it is committed."""
        row = self._expect(epoch, Event.PUBLISH)
        if row.state == State.COMMITTED:
            return
        if row.parent_branch == self._branch and row.parent_epoch is not None:
            parent = self._read(row.parent_epoch)
            if parent is None or parent.state != State.COMMITTED:
                raise Conflict(f"Epoch {self._key(epoch)} cannot be committed before its parent {_parent(row)}.")
        raise Conflict(f"Epoch {self._key(epoch)} was changed concurrently; read it again.")

    def abort(self, epoch: int, failure: Failure) -> None:
        self.own()
        row = self._run(statements.ABORT, epoch=epoch, failure=json_of(failure)).one_or_none()
        if row is None:
            self._expect(epoch, Event.ABORT)
            return
        self.moved = row
        self._run(statements.COUNT_ABORTED)
        self._count_aborted(cause_of(failure.type))
        self._tell("epoch.aborted", row)

    def record_durations(self, epochs: Sequence[MeasuredEpoch]) -> None:
        """Store the durations of epochs that this attempt has opened. The branch is locked first, as for every write to
        its epochs."""
        self.own()
        values = [
            statements.parameters(
                branch=self._branch,
                attempt=self._attempt,
                epoch=measured.epoch,
                durations=measured.model_dump(mode="json", exclude={"epoch"}),
            )
            for measured in epochs
        ]
        self._session.connection().execute(statements.TIME, values)

    def _tell(self, kind: WebhookKind, row: Row[Any]) -> None:
        def record() -> dict[str, Any]:
            return epoch_record(row).model_dump(mode="json", exclude_none=True)

        enqueue(self._session, kind, self._branch, f"{self._branch}/{row.epoch}/{kind.partition('.')[2]}", record)

    def record_heartbeat(self, status: Mapping[str, Any]) -> Row[Any]:
        """Record a heartbeat; see ``statements.HEARTBEAT``."""
        return self._run(statements.HEARTBEAT, execution=self._execution, status=status).one()

    def in_state(self, state: State) -> Sequence[Epoch]:
        """This branch's epochs in ``state``, in epoch order."""
        query = select(Epoch).where(Epoch.branch == self._branch, Epoch.state == state.value).order_by(Epoch.epoch)
        return self._session.scalars(query).all()

    def next_epoch(self) -> int:
        """Greater than the number of every epoch of the branch's lineage and of the application's other branches: see
        ``Succession``."""
        return following_epoch(self._session, self._row())

    def first_epoch(self) -> int | None:
        """The branch's smallest epoch, in any state."""
        return self._session.scalar(select(func.min(Epoch.epoch)).where(Epoch.branch == self._branch))

    def _count_aborted(self, cause: str) -> None:
        mine = Aborted.branch == self._branch, Aborted.cause == cause
        more = update(Aborted).where(*mine).values(total=Aborted.total + 1)
        if changed(self._session, more.execution_options(synchronize_session=False)) == 0:
            self._session.add(Aborted(branch=self._branch, cause=cause, total=1))

    def _add_skipped(self, row: Row[Any]) -> None:
        for kind, column in SKIPPED_COUNTS.items():
            for place, number in (getattr(row, column) or {}).items():
                mine = SkippedTotals.branch == self._branch, SkippedTotals.kind == kind, SkippedTotals.place == place
                more = update(SkippedTotals).where(*mine).values(total=SkippedTotals.total + number)
                if changed(self._session, more.execution_options(synchronize_session=False)) == 0:
                    self._session.add(SkippedTotals(branch=self._branch, kind=kind, place=place, total=number))

    def _run(self, statement: Any, **values: Any) -> CursorResult[Any]:
        """Executed on the connection: the overhead of the session exceeds the time of the statement."""
        values = statements.parameters(branch=self._branch, attempt=self._attempt, **values)
        return self._session.connection().execute(statement, values)

    def _expect(self, epoch: int, event: Event) -> Epoch:
        """The row, if ``event`` may happen to it or has already happened. Raises ``Conflict``."""
        row = self._read(epoch)
        try:
            advance(None if row is None else State(row.state), event)
        except IllegalTransition as error:
            raise Conflict(f"Epoch {self._key(epoch)}: {error.message}") from None
        if row is None:
            raise Conflict(f"Epoch {self._key(epoch)} is not open.")
        return row

    def _read(self, epoch: int) -> Epoch | None:
        return self._session.get(Epoch, (self._branch, epoch), populate_existing=True)

    def _row(self) -> Branch:
        return self._session.get_one(Branch, self._branch, populate_existing=True)

    def _key(self, epoch: int) -> EpochKey:
        return EpochKey(self._branch, epoch)

    def _fenced(self) -> Fenced:
        row = self._row()
        owner = (
            f"attempt {row.attempt} owns it" if row.owned else f"attempt {row.attempt} was the last owner, and is over"
        )
        return Fenced(f"Attempt {self._attempt} may not write branch {self._branch}: {owner}. This process must stop.")


def following_epoch(session: Session, branch: Branch) -> int:
    """The number of the next epoch of a branch, and of every new branch that begins at one of its snapshots."""
    latest = select(func.max(Epoch.epoch)).where(Epoch.branch == Branch.id).correlate(Branch).scalar_subquery()
    used = session.scalar(select(func.max(latest)).where(Branch.application == branch.application))
    return max(used or 0, branch.parent_epoch or 0) + 1


def _parent_columns(parent: EpochKey | None) -> dict[str, Any]:
    return {
        "parent_branch": parent.branch if parent else None,
        "parent_epoch": parent.epoch if parent else None,
    }


def _parent(row: Epoch) -> EpochKey | None:
    return key_of(row.parent_branch, row.parent_epoch)
