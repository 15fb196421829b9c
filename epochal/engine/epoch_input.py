"""E1: input and conditions of an epoch. Pure.

Slice limits come from the configuration and the measured rate, conditions from the parent's and the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from epochal.contracts.conditions import EpochConditions
from epochal.contracts.configuration import Configuration
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.snapshots.in_flight import hop_of, internal_sources
from epochal.snapshots.manifest import Manifest
from epochal.state.watermarks import Opening, TimeGraph, opened


def conditions_after(graph: TimeGraph, parent: Manifest | None, opening: Opening) -> EpochConditions:
    """Conditions of the epoch after ``parent``. Neither epoch time nor watermarks ever fall."""
    return EpochConditions(clock=opened(graph, None if parent is None else parent.clock, opening))


def in_rounds(
    conditions: EpochConditions, sources: Mapping[str, Source], parent: Manifest | None, slices: Mapping[str, Slice]
) -> EpochConditions:
    """Conditions with the hop of the records that leave aligned loops, and whether these loops have converged."""
    held_back_by = {name for name, source in internal_sources(sources).items() if source.holds_input_back(parent)}
    hop = max((hop_of(slices.get(name)) for name in held_back_by), default=0)
    converged = bool(held_back_by) and held_back_by.isdisjoint(slices)
    return conditions.model_copy(update={"hop": hop, "converged": converged})


def conditions_at_rest(parent: Manifest) -> EpochConditions:
    """Conditions of an epoch in which no operator runs: no timer could fire, so that neither watermarks nor epoch time
    advance. The clock of the writing process has not been compared with the catalog's."""
    queries = parent.conditions.queries
    return EpochConditions(
        clock=parent.clock, queries=None if queries is None else queries.model_copy(update={"removed": ()})
    )


def punctuated_together(sources: Mapping[str, Source], slices: Mapping[str, Slice]) -> dict[str, Slice]:
    """Slices that an epoch may take: those of all punctuated sources, or of none while a punctuation is missing.

    The n-th punctuation of each source thus belongs to one epoch (definition 3.4.1). Ended sources are not waited for.
    """
    punctuated = {name for name, source in sources.items() if source.punctuated}
    if all(name in slices or sources[name].ended for name in punctuated):
        return dict(slices)
    return {name: slice for name, slice in slices.items() if name not in punctuated}


SMOOTHING = 0.5
LARGEST_STEP = 4.0


@dataclass
class Pace:
    """Measured rate of earlier epochs of all versions. Times are seconds of one monotonic clock."""

    last_start: float | None = None
    _records_per_second: float | None = None
    _last_records: int = 0

    def limits(self, configuration: Configuration) -> SliceLimits:
        """Slice limits: at most ``max_records_per_epoch``; with ``target_epoch_seconds``, also the number of records
        that the measured rate processes in this time, changed gradually."""
        bound, seconds = configuration.max_records_per_epoch, configuration.target_epoch_seconds
        if seconds is None or self._records_per_second is None:
            return SliceLimits(max_records=bound)
        target = max(1, int(self._records_per_second * seconds))
        target = min(target, max(1, int(self._last_records * LARGEST_STEP)))
        return SliceLimits(max_records=min(target, bound) if bound else target)

    def started(self, now: float) -> None:
        self.last_start = now

    def prepared(self, now: float, records: int) -> None:
        """An epoch of ``records`` rows was decided."""
        if records <= 0 or self.last_start is None or now <= self.last_start:
            return
        rate = records / (now - self.last_start)
        before = self._records_per_second
        self._records_per_second = rate if before is None else before + SMOOTHING * (rate - before)
        self._last_records = records
