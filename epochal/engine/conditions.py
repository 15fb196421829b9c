"""E1: what an epoch runs with, from what its parent ran with and the clock. Pure."""

from __future__ import annotations

from datetime import datetime

from epochal.contracts.conditions import EpochConditions, Watermarks
from epochal.snapshots.manifest import Manifest


def conditions_after(parent: Manifest | None, now: datetime) -> EpochConditions:
    """Of an epoch on top of ``parent`` that is opened ``now``: neither epoch time nor watermarks ever fall."""
    if parent is None:
        return EpochConditions(epoch_time=now)
    return EpochConditions(epoch_time=max(now, parent.epoch_time), watermarks=_watermarks(parent))


def _watermarks(parent: Manifest) -> dict[str, Watermarks]:
    """What was fired is late from now on."""
    if parent.conditions is None:
        return {}
    before = parent.conditions.watermarks
    return {operator: Watermarks(late=marks.fire, fire=marks.fire) for operator, marks in before.items()}
