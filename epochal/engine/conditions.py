"""E1: what an epoch runs with, from what its parent ran with and the clock. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from epochal.contracts.conditions import EpochConditions
from epochal.contracts.source import Slice, Source
from epochal.snapshots.in_flight import hop_of
from epochal.snapshots.internal_source import internal_sources
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
    queries = None if parent.conditions is None else parent.conditions.queries
    return EpochConditions(
        clock=parent.clock, queries=None if queries is None else queries.model_copy(update={"removed": ()})
    )
