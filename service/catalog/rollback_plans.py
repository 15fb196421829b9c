from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.service.catalog.lineage import segments
from epochal.service.catalog.models import Branch, Epoch


@dataclass(frozen=True)
class Stretch:
    """Committed epochs of one branch after ``after``, up to ``until`` (``None``: all)."""

    branch: str
    after: int
    until: int | None


@dataclass(frozen=True)
class LeftBehind:
    """Committed epochs of the current lineage that are not of the target's, newest stretch first."""

    epochs: int
    first: int | None
    last: int | None
    stretches: Sequence[Stretch]


class RollbackRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def left_behind(self, branch: Branch, target: EpochKey) -> LeftBehind:
        stretches = list(self._stretches(branch, target))
        summary = select(func.count(), func.min(Epoch.epoch), func.max(Epoch.epoch))
        counts = [self._session.execute(_in(stretch, summary)).one() for stretch in stretches]
        numbers = [number for _, first, last in counts for number in (first, last) if number is not None]
        return LeftBehind(
            sum(count for count, _, _ in counts), min(numbers, default=None), max(numbers, default=None), stretches
        )

    def manifests(self, left: LeftBehind) -> list[ManifestReference]:
        """Those of the epochs that are left behind."""
        columns = select(Epoch.branch, Epoch.epoch, Epoch.manifest_path, Epoch.manifest_sha256)
        rows = (row for stretch in left.stretches for row in self._session.execute(_in(stretch, columns)))
        return [
            ManifestReference(branch=branch, epoch=epoch, path=path, sha256=sha256)
            for branch, epoch, path, sha256 in rows
            if path is not None
        ]

    def _stretches(self, branch: Branch, target: EpochKey) -> Iterator[Stretch]:
        """Down the current lineage, to where it meets the target's."""
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


def _in(stretch: Stretch, query: Select) -> Select:  # type: ignore[type-arg]
    query = query.where(
        Epoch.branch == stretch.branch, Epoch.epoch > stretch.after, Epoch.state == State.COMMITTED.value
    )
    return query if stretch.until is None else query.where(Epoch.epoch <= stretch.until)
