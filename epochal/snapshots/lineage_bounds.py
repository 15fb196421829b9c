"""Limits of what a manifest may name: deltas of its own epoch; bases, records in flight, standing queries and a parent
of the lineage of its branch.

Drivers run authors' code and write manifests. A control plane reads manifests and the files that they name for
look-ups, exports, collections and backups, with more rights than authors have. Without this check a manifest could name
files of another application, which the control plane would then read or retain. The catalog, not the manifest, defines
the lineage.

A manifest is checked when it is read, not when its epoch is prepared: the process that decides epochs does not access
the store, and decides an epoch in a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import ForeignFile
from epochal.snapshots import layout
from epochal.snapshots.manifest import FileReference, Manifest
from epochal.snapshots.store import SnapshotStore

_CHECKED_KEPT = 10_000
_KEPT_KINDS: frozenset[layout.Kind] = frozenset({"base", "loop", "queries"})
"""Kinds of files that later epochs name again."""

Lineage = Mapping[str, int | None]
"""A branch and its ancestors: the last epoch of each that belongs to the lineage; ``None``: all epochs."""


class Lineages(Protocol):
    """Lineages by branch. Called by any thread, for each manifest that is read."""

    def of(self, branch: str) -> Lineage | None:
        """Lineage of a branch; ``None`` for an unknown branch."""


class PlannedLineages:
    """Lineages including branches that are not in the catalog yet. ``parents``: the snapshot at which each begins."""

    def __init__(self, known: Lineages, parents: Mapping[str, EpochKey | None]) -> None:
        self._known = known
        self._parents = parents

    def of(self, branch: str) -> Lineage | None:
        known = self._known.of(branch)
        if known is not None or branch not in self._parents:
            return known
        parent = self._parents[branch]
        return standing_on(branch, parent, None if parent is None else self.of(parent.branch))


def standing_on(branch: str, parent: EpochKey | None, parents: Lineage | None) -> Lineage:
    """Lineage of a branch that begins at ``parent``, whose branch has the lineage ``parents``."""
    if parent is None:
        return {branch: None}
    before = {name: last for name, last in (parents or {}).items() if name != parent.branch}
    return {branch: None, parent.branch: parent.epoch, **before}


class LineageStore(SnapshotStore):
    """A store that checks manifests against their lineage. :meth:`read_manifest` also raises ``ForeignFile``, and
    errors of ``lineages``."""

    def __init__(self, url: str, lineages: Lineages) -> None:
        super().__init__(url)
        self._lineages = lineages
        self._checked: dict[ManifestReference, None] = {}

    def with_branches(self, parents: Mapping[str, EpochKey | None]) -> LineageStore:
        """The same store, including branches that are not in the catalog yet."""
        return LineageStore(self.url, PlannedLineages(self._lineages, parents))

    def check_bounds(self, reference: ManifestReference, manifest: Manifest) -> None:
        if reference not in self._checked:
            self._check_named(reference, manifest)
            if len(self._checked) >= _CHECKED_KEPT:
                self._checked.clear()
            self._checked[reference] = None

    def _check_named(self, reference: ManifestReference, manifest: Manifest) -> None:
        lineage = self._lineages.of(reference.branch)
        if lineage is None:
            raise ForeignFile(
                f"{self.location(reference.path)}, of snapshot {reference.key}, is not read: its branch is not in the "
                "catalog."
            )
        parent = manifest.parent
        if not reference.path.startswith(f"{layout.manifests(reference.branch)}/"):
            raise self._foreign(reference, reference.path)
        if parent is not None:
            in_place = parent.path.startswith(f"{layout.manifests(parent.branch)}/")
            if not in_place or not self._may_name(lineage, parent.branch, parent.epoch):
                raise self._foreign(reference, parent.path)
        own = f"{layout.deltas(manifest.key)}/"
        for delta in manifest.deltas:
            if not delta.file.path.startswith(own) or not _may_lie_in(delta.file, manifest.key):
                raise self._foreign(reference, delta.file.path)
        for file in (*(base.file for base in manifest.bases), *manifest.in_force):
            place = layout.place_of(file.path)
            kept = place is not None and place.kind in _KEPT_KINDS and place.finished
            if place is None or not kept or not self._may_name(lineage, place.branch, place.epoch):
                raise self._foreign(reference, file.path)
            if not _may_lie_in(file, EpochKey(place.branch, place.epoch)):
                raise self._foreign(reference, file.stored_in)

    def _may_name(self, lineage: Lineage, branch: str, epoch: int) -> bool:
        """True if a file of this branch and epoch may be named. Files of unknown branches may be named, since an import
        leaves some in the other installation, and they do not exist here."""
        if branch in lineage:
            last = lineage[branch]
            return last is None or epoch <= last
        return (
            branch not in layout.OF_THE_CATALOG and not layout.is_scratch(branch) and self._lineages.of(branch) is None
        )

    def _foreign(self, reference: ManifestReference, path: str) -> ForeignFile:
        return ForeignFile(
            f"The manifest of snapshot {reference.key} ({self.location(reference.path)}) names {path}, which is not in "
            "its lineage. The manifest was not written by a driver of Epochal. Continue from another snapshot."
        )


def _may_lie_in(file: FileReference, key: EpochKey) -> bool:
    """True if a file of an epoch lies in a pack of the same epoch, or in none."""
    if file.within is None:
        return True
    place = layout.place_of(file.within.path)
    return place is not None and place.kind == "manifest" and (place.branch, place.epoch) == (key.branch, key.epoch)
