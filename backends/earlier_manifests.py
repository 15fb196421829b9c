"""Manifests of earlier epochs in the store: for backends whose mark at the target is missing or behind."""

from __future__ import annotations

from epochal.contracts.identity import EpochKey
from epochal.snapshots import layout
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore


def manifest_paths(store: SnapshotStore, key: EpochKey) -> list[str]:
    """Paths of the complete manifests of an epoch, decided or not, and of its packs without a manifest."""
    paths = layout.by_epoch(store.list(layout.manifests(key.branch))).get(key.epoch, [])
    return [path for path in paths if not path.endswith(layout.TEMPORARY)]


def manifests_of(store: SnapshotStore, key: EpochKey) -> list[Manifest]:
    """The manifests of :func:`manifest_paths`. Raises ``SnapshotError``, or ``ValueError`` for an invalid manifest."""
    paths = manifest_paths(store, key)
    found = [(store.manifest_bytes(path, f"snapshot {key}"), store.location(path)) for path in paths]
    return [Manifest.decode(data, path) for data, path in found if data]
