"""E1: what an epoch runs with, from what its parent ran with and the clock. Pure."""

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
    """Of an epoch on top of ``parent``: neither epoch time nor watermarks ever fall."""
    return EpochConditions(clock=opened(graph, None if parent is None else parent.clock, opening))


def in_rounds(
    conditions: EpochConditions, sources: Mapping[str, Source], parent: Manifest | None, slices: Mapping[str, Slice]
) -> EpochConditions:
    """With the hop of the records that come out of loops that go in rounds, and whether these have come to rest."""
    held_back_by = {name for name, source in internal_sources(sources).items() if source.holds_input_back(parent)}
    hop = max((hop_of(slices.get(name)) for name in held_back_by), default=0)
    converged = bool(held_back_by) and held_back_by.isdisjoint(slices)
    return conditions.model_copy(update={"hop": hop, "converged": converged})


def conditions_at_rest(parent: Manifest) -> EpochConditions:
    """Conditions of an epoch in which no operator runs: nothing could fire, so that neither watermarks nor epoch time
    advance. No driver has compared the clock of the process that writes such an epoch."""
    queries = parent.conditions.queries
    return EpochConditions(
        clock=parent.clock, queries=None if queries is None else queries.model_copy(update={"removed": ()})
    )


def punctuated_together(sources: Mapping[str, Source], slices: Mapping[str, Slice]) -> dict[str, Slice]:
    """The slices that an epoch may take: of punctuated sources all, or none while one of them has yet to come.

    So the n-th punctuation of each belongs to one epoch (definition 3.4.1). One that has ended is not waited for.
    """
    punctuated = {name for name, source in sources.items() if source.punctuated}
    if all(name in slices or sources[name].ended for name in punctuated):
        return dict(slices)
    return {name: slice for name, slice in slices.items() if name not in punctuated}


SMOOTHING = 0.5
LARGEST_STEP = 4.0


@dataclass
class Pace:
    """What was measured of earlier epochs, whatever their version. Times are seconds of one monotonic clock."""

    last_start: float | None = None
    _records_per_second: float | None = None
    _last_records: int = 0

    def limits(self, configuration: Configuration) -> SliceLimits:
        """At most ``max_records_per_epoch``; with ``target_epoch_seconds``, what the measured rate gets done in that
        time, changed gradually."""
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
