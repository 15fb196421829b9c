"""Renaming of branches when a bundle of another project is imported.

Keys of snapshots and all paths contain the branch's name. Renaming rewrites it in the header, in the epochs' rows and
in the manifests. A manifest has its parent's checksum, so that manifests are rewritten oldest first; each stores its
origin in ``extras`` (:class:`Copied`).

A rewritten manifest is a file of its own. A pack is copied without the manifest at its end, so that the places of files
in it do not change.

Data files do not change. Their metadata also has the name of the original branch, which is informational: the manifest
that names a file's path and checksum defines its owner. Only a repair, which encodes a damaged base again with the same
checksum, reads the original name from ``extras``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from epochal.contracts.catalog import Change, ManifestReference
from epochal.contracts.conditions import EpochConditions
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, PackPlace
from epochal.snapshots import layout
from epochal.snapshots.bundle_format import BundleBranch, BundleEpoch, BundleHeader
from epochal.snapshots.manifest import (
    BaseFile,
    DeltaFile,
    FileInFlight,
    FileReference,
    Manifest,
    RecordsInFlight,
    SinkHandles,
)

COPIED = "copied"
"""Key in ``extras`` of a rewritten manifest."""


class Copied(BaseModel):
    """Origin of a rewritten manifest: its control plane and its sha256 there. ``snapshot``: sha256 of the exported
    snapshot, which is part of the new names. ``written_by``: branch in the metadata of its data files."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    control_plane: str
    sha256: str
    snapshot: str
    written_by: str


def copied(manifest: Manifest) -> Copied | None:
    """Origin of a manifest; ``None`` if it was not rewritten."""
    origin = manifest.extras.get(COPIED)
    return None if origin is None else Copied.model_validate(origin)


def written_by(manifest: Manifest) -> str:
    """Branch in the metadata of the manifest's data files."""
    before = copied(manifest)
    return manifest.branch if before is None else before.written_by


@dataclass(frozen=True)
class Renaming:
    """A renaming. ``branch``, ``application``: functions from old to new names. ``control_plane``, ``snapshot``: see
    :class:`Copied`; ``since``: local parent snapshot of an incremental bundle. All methods are pure.
    """

    branch: Callable[[str], str]
    application: Callable[[str], str]
    control_plane: str
    snapshot: str
    since: ManifestReference | None = None

    def key(self, key: EpochKey) -> EpochKey:
        return EpochKey(self.branch(key.branch), key.epoch)

    def path(self, path: str) -> str:
        """New path of a file below a branch."""
        branch, slash, rest = path.partition("/")
        return f"{self.branch(branch)}{slash}{rest}"

    def manifest_path(self, path: str) -> str:
        """New path of a manifest, of one in a pack, too."""
        size = layout.manifest_offset(path)
        return self.path(path.removesuffix(f"-{size:010}.pack") + ".json" if size else path)

    def missing(self, reference: ManifestReference) -> ManifestReference:
        """Reference to a manifest that is not in the bundle and is not rewritten. Its checksum matches no manifest:
        with the original one, a process that has cached the original would return it."""
        return ManifestReference(
            branch=self.branch(reference.branch),
            epoch=reference.epoch,
            path=self.manifest_path(reference.path),
            sha256=hashlib.sha256(f"not copied: {reference.sha256}".encode()).hexdigest(),
        )

    def header(self, header: BundleHeader, snapshot: ManifestReference) -> BundleHeader:
        """The renamed header. ``snapshot``: the new snapshot. Origin and names of applications do not change. Packs,
        whose checksums change, are left out: the bundle has been read."""
        return header.model_copy(
            update={
                "snapshot": snapshot,
                "since": self.since,
                "branches": tuple(self._branch(branch) for branch in header.branches),
                "packs": {},
            }
        )

    def epoch(self, epoch: BundleEpoch) -> BundleEpoch:
        return epoch.model_copy(
            update={
                "branch": self.branch(epoch.branch),
                "parent": self._key(epoch.parent),
                "changes": self._changes(epoch.changes),
            }
        )

    def manifest(self, manifest: Manifest, sha256: str, parent: ManifestReference | None) -> Manifest:
        """The renamed manifest. ``sha256``: its present checksum; ``parent``: the new parent, ``None`` if it is missing
        here."""
        if parent is None and manifest.parent is not None:
            parent = self.missing(manifest.parent)
        was = Copied(
            control_plane=self.control_plane,
            sha256=sha256,
            snapshot=self.snapshot,
            written_by=written_by(manifest),
        )
        return manifest.model_copy(
            update={
                "application": self.application(manifest.application),
                "branch": self.branch(manifest.branch),
                "parent": parent,
                "deltas": tuple(self._delta(delta) for delta in manifest.deltas),
                "bases": tuple(self._base(base) for base in manifest.bases),
                "sinks": {name: self._sink(sink) for name, sink in manifest.sinks.items()},
                "loops": {name: self._loop(loop) for name, loop in manifest.loops.items()},
                "changes": self._changes(manifest.changes),
                "conditions": self._conditions(manifest.conditions),
                "extras": {**manifest.extras, COPIED: was.model_dump()},
            }
        )

    def _key(self, key: EpochKey | None) -> EpochKey | None:
        return None if key is None else self.key(key)

    def _branch(self, branch: BundleBranch) -> BundleBranch:
        return branch.model_copy(update={"id": self.branch(branch.id), "parent": self._key(branch.parent)})

    def _file(self, file: FileReference) -> FileReference:
        return file.model_copy(update={"path": self.path(file.path), "within": self._within(file.within)})

    def _within(self, place: PackPlace | None) -> PackPlace | None:
        return None if place is None else PackPlace(self.path(place.path), place.offset)

    def _delta(self, delta: DeltaFile) -> DeltaFile:
        return delta.model_copy(update={"file": self._file(delta.file)})

    def _base(self, base: BaseFile) -> BaseFile:
        return base.model_copy(update={"at": self.key(base.at), "file": self._file(base.file)})

    def _loop(self, loop: RecordsInFlight) -> RecordsInFlight:
        return loop.model_copy(update={"files": tuple(self._in_flight(part) for part in loop.files)})

    def _in_flight(self, part: FileInFlight) -> FileInFlight:
        return part.model_copy(update={"file": self._file(part.file)})

    def _conditions(self, conditions: EpochConditions) -> EpochConditions:
        """Conditions with the new place of the standing queries."""
        if conditions.queries is None:
            return conditions
        path, within = self.path(conditions.queries.path), self._within(conditions.queries.within)
        queries = conditions.queries.model_copy(update={"path": path, "within": within})
        return conditions.model_copy(update={"queries": queries})

    def _sink(self, sink: SinkHandles) -> SinkHandles:
        return sink.model_copy(update={"handles": tuple(self._handle(handle) for handle in sink.handles)})

    def _handle(self, handle: Handle) -> Handle:
        """Handle with new paths in its payload, such as segments of write-ahead logs."""
        return handle.model_copy(update={"payload": self._paths(handle.payload)})

    def _paths(self, value: Any) -> Any:
        match value:
            case str() if layout.place_of(value) is not None:
                return self.path(value)
            case list():
                return [self._paths(each) for each in value]
            case dict():
                return {name: self._paths(each) for name, each in value.items()}
        return value

    def _changes(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Changes with new names of branches. Origins of earlier imports do not change."""
        return tuple(
            change.model_copy(update={"detail": {**change.detail, "branch": self.branch(change.detail["branch"])}})
            if isinstance(change.detail.get("branch"), str)
            else change
            for change in changes
        )
