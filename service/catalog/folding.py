"""Folding: the catalog replaces the rows of past epochs by ranges; and locks that protect snapshots from collection.

A committed epoch is folded if it was collected, is older than the rows that are always kept, and nothing refers to it:
it is not an edge of the lineage (the first epoch of a branch or a version, an epoch with changes, the parent of a
branch), has no name or message, and no retained snapshot needs its manifest. The first and the last epoch of each
stretch keep their rows, because readers look up the ends of a stretch and the parents of epochs. Aborted epochs are
folded together with adjacent committed ones, or alone if there are none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import and_, case, delete, func, or_, select, union
from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import Conflict, NotFound, SnapshotExpired
from epochal.service.catalog.models import (
    Branch,
    Epoch,
    FoldedEpochs,
    Operation,
    Savepoint,
    SnapshotMessage,
    SnapshotPin,
    SnapshotTag,
)

SHORTEST = 100
"""Minimum number of epochs of a range."""
_COMMITTED = Epoch.state == State.COMMITTED.value
_ABORTED = Epoch.state == State.ABORTED.value


@dataclass(frozen=True)
class Stretch:
    """Consecutive epochs whose rows can be removed; the committed ones have one execution and version. ``ends``:
    ascending numbers at which a part can end, including ``last``; a committed epoch, if there is one, follows each."""

    branch: str
    first: int
    last: int
    ends: Sequence[int]

    def parts(self, most: int) -> Iterator[Stretch]:
        """The same epochs in parts of about ``most``, oldest first."""
        first = self.first
        while first <= self.last:
            fits = bisect_right(self.ends, first + most - 1) - 1
            last = self.ends[fits] if fits >= 0 and self.ends[fits] >= first else self.ends[fits + 1]
            yield Stretch(self.branch, first, last, (last,))
            first = last + 1


class FoldingRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def foldable(
        self, branch: str, kept: int, collected_before: datetime, is_needed: Callable[[str], bool]
    ) -> list[Stretch]:
        """Stretches of this branch that can be folded, oldest first. ``kept``: number of newest rows to keep. Rows that
        were collected after ``collected_before`` are kept as well. ``is_needed``: whether a retained snapshot needs the
        manifest at this path."""
        newest = self._session.scalar(select(func.max(Epoch.epoch)).where(Epoch.branch == branch))
        if newest is None or newest <= kept:
            return []
        columns = (Epoch.epoch, Epoch.state, Epoch.execution, Epoch.version, Epoch.manifest_path)
        past = and_(_COMMITTED, Epoch.collected_at < collected_before, Epoch.changes.is_(None))
        query = (
            select(*columns)
            .where(
                Epoch.branch == branch,
                Epoch.epoch <= newest - kept,
                or_(past, and_(_ABORTED, Epoch.started_at < collected_before)),
            )
            .order_by(Epoch.epoch)
        )
        rows = self._session.execute(query).all()
        if len(rows) < SHORTEST:
            return []
        stay = self._to_stay(branch)
        ends = {range.last + 1: range for range in self.ranges([branch]) if range.committed}
        found = []
        for rows_of in _stretches(rows, stay, is_needed):
            first, last = rows_of[0].epoch, rows_of[-1].epoch
            cuts: Sequence[int] = range(first, last + 1)
            if _is_committed(rows_of[0]):
                goes_on = ends.get(first)
                same = goes_on is not None and _made_by(goes_on) == _made_by(rows_of[0])
                first, last = first if same else first + 1, last - 1
                cuts = [row.epoch - 1 for row in rows_of if _is_committed(row) and first < row.epoch]
            if last - first + 1 >= SHORTEST:
                found.append(Stretch(branch, first, last, cuts))
        return found

    def fold(self, stretch: Stretch) -> None:
        """Replace the rows by a range, in a write transaction; an adjacent earlier range is extended.

        Raises ``Conflict`` if an epoch is referred to in the meantime.
        """
        first, last = stretch.first, stretch.last
        mine = Epoch.branch == stretch.branch, Epoch.epoch.between(first, last)
        sums = (Epoch.rows_in, Epoch.rows_out, Epoch.state_rows, Epoch.state_bytes)
        collected = and_(_COMMITTED, Epoch.collected_at.is_not(None))
        row = self._session.execute(
            select(
                func.count(),
                func.coalesce(func.sum(case((_ABORTED, 1), else_=0)), 0),
                func.min(case((_COMMITTED, Epoch.epoch))),
                func.coalesce(func.max(case((_COMMITTED, Epoch.execution))), func.max(Epoch.execution)),
                func.max(Epoch.version),
                func.coalesce(func.min(Epoch.committed_at), func.min(Epoch.started_at)),
                func.coalesce(func.max(Epoch.committed_at), func.max(Epoch.started_at)),
                func.coalesce(func.max(Epoch.collected_at), func.max(Epoch.started_at)),
                *(func.coalesce(func.sum(case((_COMMITTED, column))), 0) for column in sums),
            ).where(*mine, or_(collected, _ABORTED))
        ).one()
        count, aborted, first_committed, execution, version, since, until, collected_at, *counts = row
        if count != last - first + 1:
            raise Conflict(
                f"Epochs {first} to {last} of branch {stretch.branch} were changed concurrently; read them again."
            )
        self._session.execute(delete(Epoch).where(*mine))
        before = self._session.scalars(
            select(FoldedEpochs).where(FoldedEpochs.branch == stretch.branch, FoldedEpochs.last == first - 1)
        ).one_or_none()
        if before is None:
            before = FoldedEpochs(branch=stretch.branch, first=first, aborted=0)
            before.rows_in = before.rows_out = before.state_rows = before.state_bytes = 0
            self._session.add(before)
            begins = True
        else:
            begins = first_committed is not None and not before.committed
        if begins:
            before.execution, before.version, before.first_committed = execution, version, first_committed
            before.committed_from = since
        before.last = last
        before.aborted += int(aborted)
        before.committed_until = until
        before.collected_at = collected_at if begins else max(before.collected_at, collected_at)
        for column, value in zip(sums, counts, strict=True):
            setattr(before, column.key, getattr(before, column.key) + int(value))
        self._session.flush()

    def branches(self) -> Sequence[str]:
        return self._session.scalars(select(Branch.id).order_by(Branch.id)).all()

    def ranges(self, branches: Iterable[str]) -> Sequence[FoldedEpochs]:
        """Listed newest first."""
        query = select(FoldedEpochs).where(FoldedEpochs.branch.in_(list(branches)))
        return self._session.scalars(query.order_by(FoldedEpochs.last.desc())).all()

    def find(self, key: EpochKey) -> FoldedEpochs | None:
        """The range that contains the epoch."""
        query = select(FoldedEpochs).where(
            FoldedEpochs.branch == key.branch, FoldedEpochs.first <= key.epoch, FoldedEpochs.last >= key.epoch
        )
        return self._session.scalars(query).one_or_none()

    def check_not_folded(self, key: EpochKey) -> None:
        """Raises ``SnapshotExpired``."""
        found = self.find(key)
        if found is None:
            return
        of = f"epochs {found.first} to {found.last} of branch {key.branch}"
        since, until = f"{found.committed_from:%Y-%m-%d %H:%M}", f"{found.committed_until:%Y-%m-%d %H:%M} UTC"
        if not found.committed:
            raise SnapshotExpired(
                f"Epoch {key.epoch} was aborted and folded: of {of}, all aborted and opened from {since} to "
                f"{until}, only the range is stored."
            )
        some = f", {found.aborted} of them aborted and the others" if found.aborted else ","
        raise SnapshotExpired(
            f"Epoch {key.epoch} has expired and was folded: of {of}{some} committed from {since} to {until}, only "
            "sums are stored."
        )

    def _to_stay(self, branch: str) -> set[int]:
        """Numbers of epochs of the branch that are referred to, or that begin a branch or version."""
        named = [
            select(table.epoch).where(table.branch == branch)
            for table in (Savepoint, SnapshotPin, SnapshotTag, SnapshotMessage)
        ]
        parents = select(Branch.parent_epoch).where(Branch.parent_branch == branch)
        heads = select(Branch.head_epoch).where(Branch.head_branch == branch)
        found = {int(number) for number in self._session.scalars(union(*named, parents, heads))}
        first = self._session.scalar(select(func.min(Epoch.epoch)).where(Epoch.branch == branch))
        versions = select(func.min(Epoch.epoch)).where(Epoch.branch == branch).group_by(Epoch.version)
        found |= {first or 0, *self._session.scalars(versions)}
        for arguments in self._session.scalars(select(Operation.arguments).where(Operation.kind == "transaction")):
            if arguments.get("branch") == branch:
                found.add(int(arguments["epoch"]))
        return found


def folded_between(session: Session, branch: str, after: int, until: int | None) -> tuple[int, Sequence[FoldedEpochs]]:
    """Number of committed epochs among the branch's folded ones after ``after`` and up to ``until``, and their ranges.
    Both bounds are numbers of rows, outside any range."""
    query = select(FoldedEpochs).where(FoldedEpochs.branch == branch, FoldedEpochs.first > after)
    if until is not None:
        query = query.where(FoldedEpochs.last <= until)
    found = [range for range in session.scalars(query.order_by(FoldedEpochs.first)) if range.committed]
    return sum(range.committed for range in found), found


def _stretches(rows: Sequence[Any], stay: Collection[int], is_needed: Callable[[str], bool]) -> Iterator[list[Any]]:
    """Consecutive rows. The committed ones of a stretch have one execution and version and are its first and last row,
    or there are none."""
    for plain, together in groupby(rows, lambda row: _is_plain(row, stay, is_needed)):
        if plain:
            for adjacent in _adjacent(together):
                yield from _trimmed(adjacent)


def _adjacent(rows: Iterable[Any]) -> Iterator[list[Any]]:
    stretch: list[Any] = []
    made_by: tuple[str, int | None] | None = None
    for row in rows:
        ends = bool(stretch) and stretch[-1].epoch + 1 != row.epoch
        if _is_committed(row):
            ends = ends or made_by not in (None, _made_by(row))
        if ends:
            yield stretch
            stretch, made_by = [], None
        if _is_committed(row):
            made_by = _made_by(row)
        stretch.append(row)
    if stretch:
        yield stretch


def _trimmed(rows: list[Any]) -> Iterator[list[Any]]:
    """Aborted epochs before the first and after the last committed one form stretches of their own."""
    committed = [at for at, row in enumerate(rows) if _is_committed(row)]
    first, end = (committed[0], committed[-1] + 1) if committed else (len(rows), len(rows))
    yield from (part for part in (rows[:first], rows[first:end], rows[end:]) if part)


def _is_plain(row: Any, stay: Collection[int], is_needed: Callable[[str], bool]) -> bool:
    return row.epoch not in stay and not (_is_committed(row) and is_needed(row.manifest_path))


def _is_committed(row: Any) -> bool:
    return bool(row.state == State.COMMITTED.value)


def _made_by(row: Any) -> tuple[str, int | None]:
    return row.execution, row.version


def hold(session: Session, key: EpochKey) -> Epoch:
    """Lock a snapshot in the transaction that begins to retain it, so that it is not collected before.

    Raises ``SnapshotExpired`` if it has been collected, ``NotFound``.
    """
    row = session.get(Epoch, (key.branch, key.epoch), with_for_update=True, populate_existing=True)
    if row is None:
        FoldingRepository(session).check_not_folded(key)
    if row is None or row.manifest_path is None:
        raise NotFound(f"There is no snapshot {key}.")
    check_not_collected(row)
    return row


def stand_on(session: Session, key: EpochKey) -> None:
    """Like :func:`hold`, for a new branch; also for a snapshot without a row in the catalog (yet)."""
    row = session.get(Epoch, (key.branch, key.epoch), with_for_update=True, populate_existing=True)
    if row is None:
        FoldingRepository(session).check_not_folded(key)
    else:
        check_not_collected(row)


def check_not_collected(row: Epoch) -> None:
    """Raises ``SnapshotExpired``."""
    if row.collected_at is not None:
        raise SnapshotExpired(
            f"Snapshot {row.branch}/{row.epoch} has expired; its files were collected on "
            f"{row.collected_at:%Y-%m-%d %H:%M} UTC. Pin snapshots, or create savepoints, to retain them longer."
        )
