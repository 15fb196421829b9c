"""Discovery of a store's snapshots from its manifests, without a catalog."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.snapshots import layout
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore


@dataclass(frozen=True)
class Discovery:
    """Result of discovery. ``cut_off``: number of manifests without history, left over from collections.
    ``unreadable``: paths of invalid manifests."""

    roots: tuple[ManifestReference, ...]
    cut_off: int
    unreadable: tuple[str, ...]


def discover(store: SnapshotStore) -> Discovery:
    """Find all snapshots of a store that have their history back to the last bases. Raises ``SnapshotError``, and
    ``NewerFormat`` for manifests of a later version."""
    found: dict[str, tuple[ManifestReference, Manifest]] = {}
    unreadable: list[str] = []
    for path in store.list(""):
        place = layout.place_of(path)
        if place is None or place.kind != "manifest" or not place.finished:
            continue
        data = store.manifest_bytes(path)
        if not data:
            continue  # a pack without a manifest
        try:
            manifest = Manifest.decode(data, store.location(path))
        except ValueError:
            unreadable.append(path)
            continue
        reference = ManifestReference(
            branch=manifest.branch, epoch=manifest.epoch, path=path, sha256=hashlib.sha256(data).hexdigest()
        )
        found[path] = (reference, manifest)
    # Undecided manifests look like decided ones; a manifest that is the parent of another was decided.
    built_on = {manifest.parent.path for _, manifest in found.values() if manifest.parent is not None}
    leaves = [path for path in found if path not in built_on]
    decided = [path for path in found if path in built_on or _is_newest(found, path, leaves)]
    whole = tuple(found[path][0] for path in decided if _has_history(found, path))
    return Discovery(whole, len(found) - len(whole), tuple(unreadable))


def _is_newest(found: Mapping[str, tuple[ManifestReference, Manifest]], path: str, leaves: Sequence[str]) -> bool:
    """True for the newest of a branch's last manifests; others were written by lost attempts."""
    reference = found[path][0]
    same = [found[leaf][0] for leaf in leaves if found[leaf][0].branch == reference.branch]
    return bool(same) and max(same, key=lambda other: (other.epoch, other.path)).path == path


def _has_history(found: Mapping[str, tuple[ManifestReference, Manifest]], path: str) -> bool:
    base_at: EpochKey | None = None
    current: str | None = path
    while current is not None:
        if current not in found:
            return False
        manifest = found[current][1]
        if base_at is None and manifest.bases:
            base_at = manifest.bases[0].at
        if manifest.key == base_at:
            return True
        current = manifest.parent.path if manifest.parent is not None else None
    return True
