"""What a manifest may name: deltas of its own epoch; bases, records in flight, standing queries and a parent of the
lineage of its branch.

Drivers run authors' code and write manifests; a control plane reads them, and the files that they name, for look-ups,
exports, collections and backups, with rights that no author has. A manifest that names other files would have it read,
or keep, another application's in this one's name. What the lineage is, the catalog says, and not the manifest.

It is checked when the manifest is read, and not when its epoch is prepared: the process that decides epochs reads no
store, and an epoch is decided in a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import ForeignFile
from epochal.snapshots import layout
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore

_CHECKED_KEPT = 10_000
_KEPT_KINDS: frozenset[layout.Kind] = frozenset({"base", "loop", "queries"})
"""What later epochs name again."""

Lineage = Mapping[str, int | None]
"""A branch and those that it stands on: of each the last epoch that belongs to it, ``None`` where all do."""


class Lineages(Protocol):
    """Asked by whichever thread reads a manifest, for each branch anew."""

    def of(self, branch: str) -> Lineage | None:
        """``None`` for a branch that is not known."""


class Beginning:
    """Lineages with branches that the catalog does not know yet. ``parents``: the snapshot that each begins at."""

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
    """The lineage of a branch that begins at ``parent``, whose branch has the lineage ``parents``."""
    if parent is None:
        return {branch: None}
    before = {name: last for name, last in (parents or {}).items() if name != parent.branch}
    return {branch: None, parent.branch: parent.epoch, **before}


class LineageStore(SnapshotStore):
    """A store whose manifests are believed within their lineage. :meth:`read_manifest` raises ``ForeignFile``, too, and
    what asking for lineages raises."""

    def __init__(self, url: str, lineages: Lineages) -> None:
        super().__init__(url)
        self._lineages = lineages
        self._checked: dict[ManifestReference, None] = {}

    def with_branches(self, parents: Mapping[str, EpochKey | None]) -> LineageStore:
        """The same store, for manifests of branches that the catalog does not know yet."""
        return LineageStore(self.url, Beginning(self._lineages, parents))

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
                f"{self.location(reference.path)}, of snapshot {reference.key}, is not read: the catalog knows no such "
                "branch."
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
            if not delta.file.path.startswith(own):
                raise self._foreign(reference, delta.file.path)
        for file in (*(base.file for base in manifest.bases), *manifest.in_force):
            place = layout.place_of(file.path)
            kept = place is not None and place.kind in _KEPT_KINDS and place.finished
            if place is None or not kept or not self._may_name(lineage, place.branch, place.epoch):
                raise self._foreign(reference, file.path)

    def _may_name(self, lineage: Lineage, branch: str, epoch: int) -> bool:
        """What an import left behind in another installation may be named: of a branch that nobody here knows there is
        nothing to be read."""
        if branch in lineage:
            last = lineage[branch]
            return last is None or epoch <= last
        return (
            branch not in layout.OF_THE_CATALOG and not layout.is_scratch(branch) and self._lineages.of(branch) is None
        )

    def _foreign(self, reference: ManifestReference, path: str) -> ForeignFile:
        return ForeignFile(
            f"The manifest of snapshot {reference.key} ({self.location(reference.path)}) names {path}, which is not of "
            "its lineage: whoever wrote it, a driver of Epochal did not. The snapshot is not used; go on from another."
        )
