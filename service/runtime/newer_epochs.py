"""Detection of decided epochs that a store holds but a catalog does not contain, or no longer contains.

A manifest is no decision. But an epoch is opened on its parent only after the parent was decided, so every epoch that a
manifest names as its parent was decided. Of several manifests with the same parent, only the one with the highest
number can have been decided: the numbers of a branch increase, and an epoch is opened only after the earlier ones were
given up. The last epoch of such a chain is complete (its manifest is written after everything else), and no later epoch
can have been opened without it; so it is decided now, if it was not: sinks that have committed it recognise it, and the
others commit it.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import SnapshotError
from epochal.snapshots import layout
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.references import References
from epochal.snapshots.store import SnapshotStore

Chain = list[tuple[ManifestReference, Manifest]]


def newer_epochs(store: SnapshotStore, branch: str, head: ManifestReference | None) -> Chain:
    """Epochs after ``head`` on ``branch``, oldest first, up to the last one that is complete."""
    above = head.epoch if head is not None and head.branch == branch else -1
    children: dict[str | None, Chain] = defaultdict(list)
    for reference, manifest in _manifests(store, branch, above):
        children[None if manifest.parent is None else manifest.parent.sha256].append((reference, manifest))
    chain: Chain = []
    at = None if head is None else head.sha256
    while found := children.get(at):
        chain.append(max(found, key=lambda pair: pair[0].epoch))
        at = chain[-1][0].sha256
    while chain and not _is_whole(store, chain[-1][0]):
        chain.pop()
    return chain


def unknown_branches(store: SnapshotStore, known: set[str], paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Branches of the store that a catalog does not contain, with their applications."""
    seen: set[str] = set()
    for path in paths:
        place = layout.place_of(path)
        if place is None or place.kind != "manifest" or not place.finished or layout.is_scratch(place.branch):
            continue
        if place.branch in known or place.branch in seen:
            continue
        try:
            data = store.manifest_bytes(path)
            if not data:
                continue  # a pack without a manifest
            seen.add(place.branch)
            yield place.branch, Manifest.decode(data, path).application
        except (SnapshotError, ValueError):
            seen.add(place.branch)


def _manifests(store: SnapshotStore, branch: str, above: int) -> Iterator[tuple[ManifestReference, Manifest]]:
    for path in store.list(layout.manifests(branch)):
        place = layout.place_of(path)
        if place is None or place.kind != "manifest" or not place.finished or place.epoch <= above:
            continue
        try:
            data = store.manifest_bytes(path)
            manifest = Manifest.decode(data, path)
            if manifest.key != EpochKey(branch, place.epoch):
                continue
            sha256 = hashlib.sha256(data).hexdigest()
            reference = ManifestReference(branch=branch, epoch=manifest.epoch, path=path, sha256=sha256)
            store.check_bounds(reference, manifest)
        except (SnapshotError, ValueError):
            continue  # no epoch was built on an unreadable manifest; if one was, the chain ends here
        yield reference, manifest


def _is_whole(store: SnapshotStore, reference: ManifestReference) -> bool:
    try:
        for path in References(store).files(reference):
            store.size(path)
    except SnapshotError:
        return False
    return True
