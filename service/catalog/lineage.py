"""Lines of snapshots: a branch, what it was forked from, and so on to the root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.service.catalog.models import Branch, Epoch


@dataclass(frozen=True)
class Segment:
    """The part of a lineage that lies on one branch: its epochs up to and with ``last`` (``None``: all)."""

    branch: Branch
    last: int | None


def segments(session: Session, branch: Branch) -> Iterator[Segment]:
    """The lineage of ``branch``, newest segment first."""
    last: int | None = None
    current: Branch | None = branch
    while current is not None:
        yield Segment(current, last)
        last = current.parent_epoch
        current = session.get(Branch, current.parent_branch) if current.parent_branch else None


def segment_of(session: Session, branch: Branch, epoch: int) -> Segment:
    """The segment in which epoch number ``epoch`` of the lineage lies: numbers rise along a lineage."""
    last = None
    for segment in segments(session, branch):
        last = segment
        if segment.branch.parent_epoch is None or epoch > segment.branch.parent_epoch:
            break
    assert last is not None  # a branch is always its own first segment
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
