"""Sources inside an application: their records stand in the snapshot that an epoch builds on.

The head of a feedback edge is one. What its tail gave in epoch n is named by manifest n, and is the head's slice in
epoch n+1: records in flight are part of the snapshot and nothing else is saved (ABS, algorithm 2; thesis, algorithm 7).
So such a source has no position of its own, and recovery, fork and rollback have nothing to restore for it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epochal.contracts.source import Slice, SliceLimits, Source

if TYPE_CHECKING:
    from epochal.snapshots.manifest import Manifest

UNLIMITED = SliceLimits(None)


class InternalSource(Source):
    """A source whose slice is found in the parent's manifest. An epoch is opened at once while there is one."""

    @abstractmethod
    def slice_of(self, parent: Manifest | None, limits: SliceLimits) -> Slice | None:
        """E1, instead of ``plan``: of the records in flight at ``parent``, those that the next epoch takes; ``None``
        when there are none. What it leaves must be found again in the manifest that has the slice. Pure."""

    def is_under_way(self, parent: Manifest | None) -> bool:
        """Whether an epoch is opened at once after ``parent``. Pure."""
        return self.slice_of(parent, UNLIMITED) is not None

    def holds_input_back(self, parent: Manifest | None) -> bool:
        """Whether the epoch after ``parent`` takes nothing from outside. Pure."""
        return False

    def plan(self, limits: SliceLimits) -> Slice | None:
        """Nothing comes from outside."""
        return None

    @property
    def ended(self) -> bool:
        """A run goes on for records in flight, which is asked by ``slice_of``."""
        return True

    def limit_to_available(self) -> None:
        """What is in flight is always taken."""

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        """The parent's manifest has all of it."""

    def checkpoint(self) -> dict[str, Any]:
        return {}

    def accept(self, slice: Slice) -> None:
        """The next parent's manifest has it."""

    def acknowledge(self, slice: Slice) -> None:
        """Nobody outside knows of it."""


def slices_in_flight(
    sources: Mapping[str, Source], parent: Manifest | None, limits: SliceLimits = UNLIMITED
) -> dict[str, Slice]:
    """By internal source the slice that the epoch after ``parent`` takes; those that have nothing are left out."""
    found = {name: source.slice_of(parent, limits) for name, source in internal_sources(sources).items()}
    return {name: slice for name, slice in found.items() if slice is not None}


def under_way(sources: Mapping[str, Source], parent: Manifest | None) -> frozenset[str]:
    """The internal sources for which an epoch is opened at once after ``parent``."""
    return frozenset(name for name, source in internal_sources(sources).items() if source.is_under_way(parent))


def input_held_back(sources: Mapping[str, Source], parent: Manifest | None) -> bool:
    """Whether the epoch after ``parent`` takes nothing from outside."""
    return any(source.holds_input_back(parent) for source in internal_sources(sources).values())


def internal_sources(sources: Mapping[str, Source]) -> dict[str, InternalSource]:
    """Those among them that are inside the application."""
    return {name: source for name, source in sources.items() if isinstance(source, InternalSource)}
