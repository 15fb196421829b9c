"""E1: what an epoch runs with, from what its parent ran with and the clock. Pure."""

from __future__ import annotations

from datetime import datetime

from epochal.contracts.conditions import EpochConditions, microseconds
from epochal.snapshots.manifest import Manifest
from epochal.state.watermarks import Opening, TimeGraph, opened


def conditions_after(graph: TimeGraph, parent: Manifest | None, opening: Opening) -> EpochConditions:
    """Of an epoch on top of ``parent``: neither epoch time nor watermarks ever fall."""
    return EpochConditions(clock=opened(graph, None if parent is None else parent.clock, opening))


def conditions_at_rest(parent: Manifest, now: datetime) -> EpochConditions:
    """Of an epoch in which no operator runs: nothing could fire, so that no watermark may advance."""
    before = parent.clock
    return EpochConditions(clock=before.model_copy(update={"epoch_time": max(microseconds(now), before.epoch_time)}))
