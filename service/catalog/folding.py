"""Folding: of epochs that are past, the catalog keeps ranges instead of a row for each.

An epoch is folded when it was committed and collected, is older than the rows that are kept anyway, and there is
nothing to say of it: it is no edge of the lineage (the first of its branch, or of a version, one with changes, one that
a branch stands on), has no name or message, and no retained snapshot needs its manifest. Of each stretch of such epochs
the first and the last keep their rows, so that whatever looks at the ends of a run, or at a parent, finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select, union
from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import Conflict, SnapshotExpired
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
"""Fewer epochs than this are not worth a range."""


@dataclass(frozen=True)
class Stretch:
    """Epochs whose rows can go, all of one execution and version, without a gap."""

    branch: str
    first: int
    last: int

    def parts(self, most: int) -> Iterator[Stretch]:
        """The same epochs in turns, oldest first."""
        for first in range(self.first, self.last + 1, most):
            yield Stretch(self.branch, first, min(self.last, first + most - 1))


class FoldingRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def foldable(
        self, branch: str, kept: int, collected_before: datetime, is_needed: Callable[[str], bool]
    ) -> list[Stretch]:
        """What can go of this branch, oldest first. ``kept``: so many of its newest rows stay, as do those that were
        collected after ``collected_before``; ``is_needed``: whether a retained snapshot needs the manifest with this
        path."""
        newest = self._session.scalar(select(func.max(Epoch.epoch)).where(Epoch.branch == branch))
        if newest is None or newest <= kept:
            return []
        columns = (Epoch.epoch, Epoch.execution, Epoch.version, Epoch.manifest_path)
        query = (
            select(*columns)
            .where(
                Epoch.branch == branch,
                Epoch.epoch <= newest - kept,
                Epoch.state == State.COMMITTED.value,
                Epoch.collected_at < collected_before,
                Epoch.changes.is_(None),
            )
            .order_by(Epoch.epoch)
        )
        rows = self._session.execute(query).all()
        if len(rows) < SHORTEST:
            return []
        stay = self._to_stay(branch)
        ends = {range.last + 1: range for range in self.ranges([branch])}
        found = []
        for stretch in _stretches(rows, stay, is_needed):
            goes_on = ends.get(stretch[0].epoch)
            same = goes_on is not None and (goes_on.execution, goes_on.version) == (
                stretch[0].execution,
                stretch[0].version,
            )
            first = stretch[0].epoch if same else stretch[0].epoch + 1
            last = stretch[-1].epoch - 1
            if last - first + 1 >= SHORTEST:
                found.append(Stretch(branch, first, last))
        return found

    def fold(self, stretch: Stretch) -> None:
        """A range instead of its rows, in a writing transaction; one that goes on a range becomes part of it.

        Raises ``Conflict`` when something refers to one of them now.
        """
        first, last = stretch.first, stretch.last
        mine = Epoch.branch == stretch.branch, Epoch.epoch.between(first, last)
        sums = (Epoch.rows_in, Epoch.rows_out, Epoch.state_rows, Epoch.state_bytes)
        row = self._session.execute(
            select(
                func.count(),
                func.max(Epoch.execution),
                func.max(Epoch.version),
                func.min(Epoch.committed_at),
                func.max(Epoch.committed_at),
                func.max(Epoch.collected_at),
                *(func.coalesce(func.sum(column), 0) for column in sums),
            ).where(*mine, Epoch.state == State.COMMITTED.value, Epoch.collected_at.is_not(None))
        ).one()
        count, execution, version, committed_from, committed_until, collected_at, *counts = row
        if count != last - first + 1 or committed_until is None or collected_at is None:
            raise Conflict(f"Epochs {first} to {last} of branch {stretch.branch} have been changed; look again.")
        self._session.execute(delete(Epoch).where(*mine))
        before = self._session.scalars(
            select(FoldedEpochs).where(FoldedEpochs.branch == stretch.branch, FoldedEpochs.last == first - 1)
        ).one_or_none()
        if before is None:
            names = [column.key for column in sums]
            self._session.add(
                FoldedEpochs(
                    branch=stretch.branch,
                    first=first,
                    last=last,
                    execution=execution,
                    version=version,
                    committed_from=committed_from,
                    committed_until=committed_until,
                    collected_at=collected_at,
                    **{name: int(value) for name, value in zip(names, counts, strict=True)},
                )
            )
        else:
            before.last = last
            before.committed_until = committed_until
            before.collected_at = max(before.collected_at, collected_at)
            for column, value in zip(sums, counts, strict=True):
                setattr(before, column.key, getattr(before, column.key) + int(value))
        self._session.flush()

    def branches(self) -> Sequence[str]:
        return self._session.scalars(select(Branch.id).order_by(Branch.id)).all()

    def ranges(self, branches: Iterable[str]) -> Sequence[FoldedEpochs]:
        """Newest first."""
        query = select(FoldedEpochs).where(FoldedEpochs.branch.in_(list(branches)))
        return self._session.scalars(query.order_by(FoldedEpochs.last.desc())).all()

    def find(self, key: EpochKey) -> FoldedEpochs | None:
        """The range that the epoch is in."""
        query = select(FoldedEpochs).where(
            FoldedEpochs.branch == key.branch, FoldedEpochs.first <= key.epoch, FoldedEpochs.last >= key.epoch
        )
        return self._session.scalars(query).one_or_none()

    def check_not_folded(self, key: EpochKey) -> None:
        """Raises ``SnapshotExpired``."""
        found = self.find(key)
        if found is not None:
            raise SnapshotExpired(
                f"Epoch {key.epoch} was committed, has expired and was folded: of epochs {found.first} to {found.last} "
                f"of branch {key.branch}, committed from {found.committed_from:%Y-%m-%d %H:%M} to "
                f"{found.committed_until:%Y-%m-%d %H:%M} UTC, only their sums are kept."
            )

    def _to_stay(self, branch: str) -> set[int]:
        """Numbers of the branch that something refers to, or with which something begins."""
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
    """How many folded epochs of the branch have numbers above ``after`` and up to ``until``; and their ranges. Both lie
    outside any range: they are numbers of rows."""
    query = select(FoldedEpochs).where(FoldedEpochs.branch == branch, FoldedEpochs.first > after)
    if until is not None:
        query = query.where(FoldedEpochs.last <= until)
    found = session.scalars(query.order_by(FoldedEpochs.first)).all()
    return sum(range.last - range.first + 1 for range in found), found


def _stretches(rows: Sequence[Any], stay: Collection[int], is_needed: Callable[[str], bool]) -> Iterator[list[Any]]:
    stretch: list[Any] = []
    for row in rows:
        plain = row.epoch not in stay and not is_needed(row.manifest_path)
        goes_on = bool(stretch) and (row.epoch, row.execution, row.version) == (
            stretch[-1].epoch + 1,
            stretch[-1].execution,
            stretch[-1].version,
        )
        if stretch and not (plain and goes_on):
            yield stretch
            stretch = []
        if plain:
            stretch.append(row)
    if stretch:
        yield stretch
