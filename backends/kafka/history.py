"""Has a sink been part of the branch before? What its manifests say, where its marker is missing."""

from __future__ import annotations

from epochal.backends.earlier_manifests import manifests_of
from epochal.contracts.identity import EpochScope
from epochal.errors import EpochalError
from epochal.snapshots.store import SnapshotStore


def was_there_before(store: SnapshotStore, epoch: EpochScope, sink: str) -> bool:
    """Whether the parent epoch's manifest names the sink; also ``True`` when that cannot be found out."""
    parent = epoch.parent
    if parent is None:
        return False
    try:
        manifests = manifests_of(store, parent)
    except (EpochalError, ValueError):
        return True
    return not manifests or any(sink in manifest.sinks for manifest in manifests)
