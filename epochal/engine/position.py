"""Position of an execution: the latest prepared snapshot, the chains of its state tables, and bases not yet named."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.snapshots import compaction
from epochal.snapshots.chain import Chain
from epochal.snapshots.lineage import extend, read_chains
from epochal.snapshots.manifest import BaseFile, Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable


@dataclass
class Position:
    """Position of an attempt. E4 of every epoch advances it, so that chains are read once per attempt."""

    branch: str
    next_epoch: int
    head: ManifestReference | None
    chains: dict[str, Chain] = field(default_factory=dict)
    snapshot: Manifest | None = None
    """The manifest of ``head``: the parent of the next epoch."""

    @property
    def parent(self) -> EpochKey | None:
        return self.head.key if self.head else None

    @property
    def links(self) -> int:
        """Length of the longest chain, in epochs since its base."""
        return max((len(chain.links) for chain in self.chains.values()), default=0)

    @classmethod
    def recovered(
        cls,
        store: SnapshotStore,
        branch: str,
        next_epoch: int,
        head: ManifestReference | None,
        tables: Sequence[StateTable],
    ) -> Position:
        """R2: read ``head`` and its chains. Raises ``FileMissing``, ``FileCorrupt``."""
        chains = read_chains(store, head, [table.id for table in tables])
        return cls(branch, next_epoch, head, chains, store.read_manifest(head) if head is not None else None)

    def advance(self, manifest: Manifest, reference: ManifestReference) -> None:
        """Advance to an epoch that E4 has prepared."""
        self.head, self.snapshot = reference, manifest
        self.chains = {table: extend(chain, table, manifest) for table, chain in self.chains.items()}


@dataclass
class PendingBases:
    """Bases that E7 has written in the background and the next manifest names. An aborted epoch leaves them pending.

    Manifests with bases have the sources' checkpoints, at which a recovery stops its walk. An application without state
    tables has no bases and requests checkpoints only.
    """

    _bases: tuple[BaseFile, ...] = ()
    _checkpoint_requested: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, bases: tuple[BaseFile, ...]) -> None:
        with self._lock:
            self._bases = bases

    def take(self) -> tuple[BaseFile, ...]:
        """Bases that the next manifest names; empty if there are none."""
        with self._lock:
            return self._bases

    def want_checkpoint(self) -> None:
        """Request the sources' checkpoints in the next manifest, even without bases."""
        with self._lock:
            self._checkpoint_requested = True

    @property
    def checkpoint_requested(self) -> bool:
        with self._lock:
            return self._checkpoint_requested

    def discard(self, store: SnapshotStore, chains: Iterable[Chain]) -> None:
        """Remove the pending bases at an orderly end, when no manifest names them. After a crash, R4 removes them."""
        compaction.discard(store, self.take(), chains)

    def published(self, manifest: Manifest) -> None:
        """Clear the bases and checkpoints that a decided manifest has."""
        with self._lock:
            if manifest.bases and manifest.bases == self._bases:
                self._bases = ()
            if manifest.source_checkpoints:
                self._checkpoint_requested = False
