"""Has a sink been part of the branch before? What its manifests say, where its marker is missing."""

from __future__ import annotations

from epochal.contracts.identity import EpochScope
from epochal.errors import EpochalError
from epochal.snapshots import layout
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore


def was_there_before(store: SnapshotStore, epoch: EpochScope, sink: str) -> bool:
    """Whether the parent epoch's manifest names the sink; also ``True`` when that cannot be found out."""
    parent = epoch.parent
    if parent is None:
        return False
    paths = layout.manifests_by_epoch(store.list(layout.manifests(parent.branch))).get(parent.epoch, [])
    try:
        manifests = [Manifest.decode(store.read(path)) for path in paths]
    except (EpochalError, ValueError):
        return True
    return not manifests or any(sink in manifest.sinks for manifest in manifests)
