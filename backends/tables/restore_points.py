"""The version to restore a table to after a rollback: the latest one without the epochs that it leaves behind.

Each version that a sink commits names its branch and epochs, so that the history of the table shows where the first of
these epochs is. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochal.contracts.catalog import EpochRange, RestorePoint


@dataclass(frozen=True)
class TableVersion:
    """A version of a table. ``before``: the previous one, if any. ``branch`` and ``epochs``: what a sink committed with
    it; empty for other versions."""

    version: int
    before: int | None
    branch: str = ""
    epochs: tuple[int, ...] = ()


def restore_point(history: Sequence[TableVersion], left: Mapping[str, EpochRange]) -> RestorePoint | None:
    """``history``: the latest versions, newest first. ``left``: by branch, the epochs that are left behind. ``None`` if
    only older versions can tell."""
    first: TableVersion | None = None
    for each in history:
        span = left.get(each.branch)
        if span is not None and any(epoch in span for epoch in each.epochs):
            first = each
            kept = [epoch for epoch in each.epochs if epoch < span.first]
            if kept:
                return RestorePoint(reason=_shared(each, kept[-1], span))
        elif span is not None and each.epochs and each.epochs[-1] < span.first:
            return _before(history, first)
        if each.before is None:
            return _before(history, first)
    return None


def _before(history: Sequence[TableVersion], first: TableVersion | None) -> RestorePoint:
    if first is None:
        return RestorePoint(version=str(history[0].version))
    if first.before is None:
        return RestorePoint(reason="the table was empty before these epochs: delete its rows")
    return RestorePoint(version=str(first.before))


def _shared(version: TableVersion, kept: int, span: EpochRange) -> str:
    left = next(epoch for epoch in version.epochs if epoch in span)
    return f"no version of the table has epoch {kept} without epoch {left}: version {version.version} commits both"
