"""Values of metrics, read from counters and indexes, never from the history of epochs or operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import BigInteger, ColumnElement, String, column, func, select, values
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ShownWatermarks
from epochal.contracts.configuration import Configuration
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.models import (
    Aborted,
    Application,
    Branch,
    Epoch,
    Execution,
    Operation,
    SkippedTotals,
    Version,
)
from epochal.service.domain.failures import OTHER

SUMS = (
    "committed_epochs",
    "aborted_epochs",
    "rows_in",
    "rows_out",
    "state_rows",
    "state_bytes",
    "attempts",
    "restarts",
)
_AT_ONCE = 400
"""Maximum number of keys in one query, since databases limit the number of parameters."""
_INTERVAL = Configuration.model_fields["epoch_interval_seconds"].default


@dataclass(frozen=True)
class Running:
    """An active application. ``committed_at``: time of its latest committed epoch."""

    application: str
    since: datetime
    heartbeat_at: datetime | None
    committed_at: datetime | None
    uncommitted: int
    epoch_interval_seconds: float


class ApplicationMetrics:
    """Values by name, of applications that are not deleted."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def states(self) -> Mapping[str, str]:
        state = func.coalesce(Execution.state, "created")
        query = select(Application.name, state).outerjoin(Execution, Execution.id == Application.execution)
        found = self._session.execute(query.where(Application.deleted_at.is_(None)))
        return {row[0]: row[1] for row in found}

    def sums(self) -> Iterator[tuple[str, Mapping[str, int]]]:
        """Counters, summed over all branches of the application."""
        query = (
            select(Application.name, *(func.sum(getattr(Branch, name)) for name in SUMS))
            .join(Branch, Branch.application == Application.id)
            .where(Application.deleted_at.is_(None))
            .group_by(Application.name)
        )
        for name, *sums in self._session.execute(query):
            yield name, dict(zip(SUMS, map(int, sums), strict=True))

    def aborted(self) -> Mapping[str, Mapping[str, int]]:
        """Aborted epochs by cause, if any."""
        query = (
            select(Application.name, Aborted.cause, func.sum(Aborted.total))
            .join(Branch, Branch.id == Aborted.branch)
            .join(Application, Application.id == Branch.application)
            .where(Application.deleted_at.is_(None))
            .group_by(Application.name, Aborted.cause)
        )
        found: dict[str, dict[str, int]] = {}
        for name, cause, total in self._session.execute(query):
            found.setdefault(name, {})[cause] = int(total)
        return found

    def running(self) -> Sequence[Running]:
        query = (
            select(
                Application.name,
                Execution.started_at,
                Execution.heartbeat_at,
                _latest_commit(),
                _uncommitted(),
                Version.configuration,
            )
            .join(Execution, Execution.id == Application.execution)
            .join(Branch, Branch.id == Application.branch)
            .join(Version, (Version.application == Application.id) & (Version.number == Execution.version))
            .where(Application.deleted_at.is_(None), Execution.ended_at.is_(None))
        )
        return [
            Running(
                name, since, heard, committed, uncommitted, float(settings.get("epoch_interval_seconds", _INTERVAL))
            )
            for name, since, heard, committed, uncommitted, settings in self._session.execute(query)
        ]

    def committed_heads(self) -> Mapping[str, EpochKey]:
        """The latest committed epoch of the application's own branch, if any."""
        latest = select(func.max(Epoch.epoch)).where(Epoch.branch == Branch.id, Epoch.state == State.COMMITTED.value)
        query = (
            select(Application.name, Branch.id, latest.correlate(Branch).scalar_subquery())
            .join(Branch, Branch.id == Application.branch)
            .where(Application.deleted_at.is_(None))
        )
        return {name: EpochKey(branch, epoch) for name, branch, epoch in self._session.execute(query) if epoch}

    def committed_after(self, keys: Iterable[EpochKey]) -> Mapping[EpochKey, datetime]:
        """Commit time of the first committed epoch of the same branch after each of these, if any."""
        remaining, found = iter(keys), {}
        while some := [(key.branch, key.epoch) for key in islice(remaining, _AT_ONCE)]:
            asked = values(column("branch", String), column("epoch", BigInteger), name="asked").data(some).cte()
            later = select(Epoch.committed_at).where(
                Epoch.branch == asked.c.branch, Epoch.state == State.COMMITTED.value, Epoch.epoch > asked.c.epoch
            )
            first = later.order_by(Epoch.epoch).limit(1).correlate(asked).scalar_subquery()
            for branch, epoch, committed_at in self._session.execute(select(asked.c.branch, asked.c.epoch, first)):
                if committed_at is not None:
                    found[EpochKey(branch, epoch)] = committed_at
        return found

    def interrupted(self) -> Mapping[str, int]:
        """Number of decided but uncommitted epochs of stopped applications, if any."""
        query = (
            select(Application.name, _uncommitted())
            .outerjoin(Execution, Execution.id == Application.execution)
            .join(Branch, Branch.id == Application.branch)
            .where(Application.deleted_at.is_(None), Execution.ended_at.is_not(None))
        )
        return {name: count for name, count in self._session.execute(query) if count}


def _latest_commit() -> ColumnElement[datetime | None]:
    """Commit time of the branch's own latest epoch; ``None`` until it has committed one."""
    committed = select(Epoch.committed_at).where(Epoch.branch == Branch.id, Epoch.state == State.COMMITTED.value)
    return committed.order_by(Epoch.epoch.desc()).limit(1).correlate(Branch).scalar_subquery()


def _uncommitted() -> ColumnElement[int]:
    prepared = select(func.count()).where(Epoch.branch == Branch.id, Epoch.state == State.PREPARED.value)
    return prepared.correlate(Branch).scalar_subquery()


def by_cause(causes: Mapping[str, int], total: int) -> Mapping[str, int]:
    """Counts by cause; the remainder of ``total`` counts as ``other``."""
    counted = dict(causes)
    counted[OTHER] = counted.get(OTHER, 0) + max(0, total - sum(causes.values()))
    return counted


OVERLAP = timedelta(seconds=60)
"""Maximum delay between an operation's ``finished_at`` and its visibility: transactions take time, and clocks
differ."""


@dataclass
class Collected:
    """Totals of collections, and the time of the latest one."""

    files: int = 0
    bytes: int = 0
    at: datetime | None = None


class EndedOperations:
    """Counts of completed operations since the first reading. Not thread-safe. ``ended``: by kind and state."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        self.collected = Collected()
        self._since: datetime | None = None
        self._seen: dict[str, datetime] = {}

    def read(self, session: Session, moment: datetime) -> None:
        """Count operations that ended since the last call. The first call counts none."""
        first = self._since is None
        since = (self._since or moment) - OVERLAP
        columns = Operation.id, Operation.kind, Operation.state, Operation.finished_at, Operation.result
        for id, kind, state, finished_at, result in session.execute(
            select(*columns).where(Operation.finished_at > since).order_by(Operation.finished_at)
        ):
            if id in self._seen or finished_at is None:
                continue
            self._seen[id] = finished_at
            if not first:
                self._count(kind, state, finished_at, result)
        self._since = moment
        self._seen = {id: at for id, at in self._seen.items() if at > moment - 2 * OVERLAP}

    def _count(self, kind: str, state: str, at: datetime, result: Mapping[str, object] | None) -> None:
        self.ended[kind, state] += 1
        if kind == "collect" and state == "succeeded":
            deleted = (result or {}).get("deleted")
            if isinstance(deleted, Mapping):
                self.collected.files += int(deleted.get("files", 0))
                self.collected.bytes += int(deleted.get("bytes", 0))
            self.collected.at = at


def running_operations(session: Session) -> Mapping[str, int]:
    """Running operations by kind."""
    running = select(Operation.kind, func.count()).where(Operation.finished_at.is_(None)).group_by(Operation.kind)
    return {row[0]: row[1] for row in session.execute(running)}


_APPLICATION_STATES = ("created", "starting", "running", "stopping", "stopped", "failed")


class CountRepository:
    """Counts by state. States without members are included as 0, so that their series exist."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def applications(self) -> Mapping[str, int]:
        return {**dict.fromkeys(_APPLICATION_STATES, 0), **ApplicationRepository(self._session).count_by_state()}

    def epochs(self) -> Mapping[str, int]:
        """Read from counters and from an index of each branch."""
        counted = {
            State.STARTED: _unfinished(State.STARTED),
            State.PREPARED: _unfinished(State.PREPARED),
            State.COMMITTED: Branch.committed_epochs,
            State.ABORTED: Branch.aborted_epochs,
        }
        row = self._session.execute(select(*(func.coalesce(func.sum(counted[state]), 0) for state in State))).one()
        return {state.value: int(count) for state, count in zip(State, row, strict=True)}

    def skipped(self) -> Iterator[tuple[str, str, str, int]]:
        """Application, kind, place and number of skipped rows and timers, over all branches of the application.

        Places that skipped none are included as 0.
        """
        totals = (
            select(Application.name, SkippedTotals.kind, SkippedTotals.place, func.sum(SkippedTotals.total))
            .join(Branch, Branch.id == SkippedTotals.branch)
            .join(Application, Application.id == Branch.application)
            .where(Application.deleted_at.is_(None))
            .group_by(Application.name, SkippedTotals.kind, SkippedTotals.place)
        )
        found = {(name, kind, place): 0 for name, place, _ in self._marks() for kind in ("late", "rejected")}
        for name, kind, place, total in self._session.execute(totals):
            found[name, kind, place] = int(total)
        for key, total in found.items():
            yield *key, total

    def watermarks(self) -> Iterator[tuple[str, str, datetime]]:
        """Application, place and ``fire`` of the heads whose watermark is known and has not ended."""
        for name, place, marks in self._marks():
            if marks.fire is not None:
                yield name, place, marks.fire

    def _marks(self) -> Iterator[tuple[str, str, ShownWatermarks]]:
        heads = (
            select(Application.name, Epoch.watermarks)
            .join(Branch, Branch.id == Application.branch)
            .join(Epoch, (Epoch.branch == Branch.head_branch) & (Epoch.epoch == Branch.head_epoch))
            .where(Application.deleted_at.is_(None))
        )
        for name, watermarks in self._session.execute(heads):
            for place, said in (watermarks or {}).items():
                yield name, place, ShownWatermarks.model_validate(said)


def _unfinished(state: State) -> ColumnElement[int]:
    found = select(func.count()).where(Epoch.branch == Branch.id, Epoch.state == state.value)
    return found.correlate(Branch).scalar_subquery()
