"""Where an execution stands: the latest prepared snapshot of its lineage and the chains of its state tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.snapshots.chain import Chain
from epochal.snapshots.lineage import extend, read_chains
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable


@dataclass
class Position:
    """Moved on by E4 of every epoch, so that the chains need not be walked again within an attempt."""

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
        """E4 landed: the epoch is the new head."""
        self.head, self.snapshot = reference, manifest
        self.chains = {table: extend(chain, table, manifest) for table, chain in self.chains.items()}
