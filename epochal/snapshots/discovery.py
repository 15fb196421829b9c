"""Finding the snapshots of a store without a catalog, by its manifests alone."""

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
    """``cut_off``: manifests whose history is gone: remains of what was collected. ``unreadable``: paths of manifests
    that are none."""

    roots: tuple[ManifestReference, ...]
    cut_off: int
    unreadable: tuple[str, ...]


def discover(store: SnapshotStore) -> Discovery:
    """Every snapshot of a store whose history is there, back to its last bases. Raises ``SnapshotError``; what has a
    newer format is no damage, and nothing can be said of its store."""
    found: dict[str, tuple[ManifestReference, Manifest]] = {}
    unreadable: list[str] = []
    for path in store.list(""):
        place = layout.place_of(path)
        if place is None or place.kind != "manifest" or not place.finished:
            continue
        data = store.read(path)
        try:
            manifest = Manifest.decode(data, store.location(path))
        except ValueError:
            unreadable.append(path)
            continue
        reference = ManifestReference(
            branch=manifest.branch, epoch=manifest.epoch, path=path, sha256=hashlib.sha256(data).hexdigest()
        )
        found[path] = (reference, manifest)
    # A manifest that nobody decided looks like any other; the one that another builds on was decided.
    built_on = {manifest.parent.path for _, manifest in found.values() if manifest.parent is not None}
    leaves = [path for path in found if path not in built_on]
    decided = [path for path in found if path in built_on or _is_newest(found, path, leaves)]
    whole = tuple(found[path][0] for path in decided if _has_history(found, path))
    return Discovery(whole, len(found) - len(whole), tuple(unreadable))


def _is_newest(found: Mapping[str, tuple[ManifestReference, Manifest]], path: str, leaves: Sequence[str]) -> bool:
    """Of a branch's last manifests the newest counts: the others were written by attempts that lost."""
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
