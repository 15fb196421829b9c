"""What the manifests of a branch say of a sink, where its marker does not name the epoch that it should."""

from __future__ import annotations

from epochal.backends.earlier_manifests import manifests_of
from epochal.contracts.configuration import DELIVERY
from epochal.contracts.identity import EpochScope
from epochal.errors import EpochalError
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore


def may_begin(store: SnapshotStore, epoch: EpochScope, sink: str) -> bool:
    """Whether nothing of the epochs before is left to a marker: the parent's manifest has no such sink, or its tasks
    had written to the topic themselves. ``False`` when that cannot be found out."""
    parent = epoch.parent
    if parent is None:
        return True
    try:
        manifests = manifests_of(store, parent)
    except (EpochalError, ValueError):
        return False
    return bool(manifests) and all(_left_no_marker(manifest, sink) for manifest in manifests)


def _left_no_marker(manifest: Manifest, sink: str) -> bool:
    if sink not in manifest.sinks:
        return True
    handles = manifest.sinks[sink].handles
    return bool(handles) and all(DELIVERY in handle.payload for handle in handles)
