"""A chain: the files that make up one state table at one snapshot, as tasks, replicas and readers get it."""

from __future__ import annotations

from dataclasses import dataclass

from epochal.contracts.identity import EpochKey
from epochal.snapshots.cached_state import CachedState
from epochal.snapshots.manifest import BaseFile, DeltaFile
from epochal.state.expiry import StateClock


@dataclass(frozen=True)
class Link:
    """One snapshot of the lineage and the deltas it added to the table (none, when the epoch did not touch it)."""

    key: EpochKey
    deltas: tuple[DeltaFile, ...]


@dataclass(frozen=True)
class Chain:
    """Base (if any), then links oldest first; the last link's key is the snapshot.

    A local store that is marked with the base's epoch or any link's key can catch up from there; any other mark means
    that it is ahead or not an ancestor, and it is discarded. Without a base the table was empty before the first link.
    ``clock``: the operator's at the snapshot, by which rows expire.
    """

    base_at: EpochKey | None
    bases: tuple[BaseFile, ...]
    links: tuple[Link, ...]
    clock: StateClock | None = None
    cached: CachedState | None = None
    """Of a state table that is not durable, which has no files: the names of what subtasks hold in caches."""

    @property
    def at(self) -> EpochKey | None:
        return self.links[-1].key if self.links else self.base_at

    def after(self, mark: EpochKey | None) -> tuple[Link, ...] | None:
        """The links that a store marked ``mark`` lacks; ``None`` when it has to restore from the base."""
        if mark == self.base_at:
            return self.links
        for position, link in enumerate(self.links):
            if link.key == mark:
                return self.links[position + 1 :]
        return None
