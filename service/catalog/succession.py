"""What a branch takes over from the other branches of its application: after rollbacks there are several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import Change, EpochRange, Succession
from epochal.service.catalog.lineage import segments
from epochal.service.catalog.models import Branch, Epoch

MOVE_ASIDE = "move_aside"
"""In the origin of a rollback's branch: whether sinks hide what was left behind."""


def begun_with(branch: Branch) -> Change | None:
    """How a branch began that stands on a snapshot."""
    if branch.parent_branch is None:
        return None
    detail: dict[str, Any] = {"branch": branch.parent_branch, "epoch": branch.parent_epoch, "by": branch.created_by}
    if branch.message is not None:
        detail["message"] = branch.message
    if branch.kind == "import" and branch.origin is not None:
        detail["origin"] = branch.origin
    return Change(kind=branch.kind, detail=detail)


def succession_of(session: Session, branch: Branch) -> Succession | None:
    """``None`` when no other branch of the application has an epoch."""
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
    """The epochs of each branch of an application, in any state."""
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
