"""Snapshots under other names of branches: what a bundle of another project becomes when it is imported.

The name of a branch stands in keys of snapshots and at the beginning of every path. All of these are said anew: in the
header, in what the catalog said of the epochs, in the manifests. A manifest names its parent's checksum, so manifests
are written again oldest first, and each says in its ``extras`` what it was (:class:`Copied`).

Data files stay as they are, byte for byte. Deltas and bases have the name of the branch that wrote them in their
metadata, too; it is for people, and read by nobody: whose a file is, the manifest says that names its path and its
checksum. Only a repair, which writes a damaged base again with the same checksum, has to know it, from ``extras``.
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
from epochal.contracts.identity import EpochKey
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
"""In the ``extras`` of a manifest that was written again."""


class Copied(BaseModel):
    """What a manifest was: of which control plane's, and its sha256 there. ``snapshot``: the sha256 of the snapshot
    that the bundle was made of; it is part of the new names. ``written_by``: the branch that its data files name."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    control_plane: str
    sha256: str
    snapshot: str
    written_by: str


def copied(manifest: Manifest) -> Copied | None:
    """``None`` for one that was not written again."""
    said = manifest.extras.get(COPIED)
    return None if said is None else Copied.model_validate(said)


def written_by(manifest: Manifest) -> str:
    """The branch that the manifest's data files name."""
    before = copied(manifest)
    return manifest.branch if before is None else before.written_by


@dataclass(frozen=True)
class Renaming:
    """``branch``: the new name of any branch; ``application``: of any application. ``control_plane`` and ``snapshot``
    as :class:`Copied` has them; ``since``: of an increment, the snapshot here on which it stands. All methods are pure.
    """

    branch: Callable[[str], str]
    application: Callable[[str], str]
    control_plane: str
    snapshot: str
    since: ManifestReference | None = None

    def key(self, key: EpochKey) -> EpochKey:
        return EpochKey(self.branch(key.branch), key.epoch)

    def path(self, path: str) -> str:
        """Of a file below a branch."""
        branch, slash, rest = path.partition("/")
        return f"{self.branch(branch)}{slash}{rest}"

    def missing(self, reference: ManifestReference) -> ManifestReference:
        """Of a manifest that is not in the bundle, and so is not written again. It gets a checksum that no manifest
        has: by its own one, a store that has the original would find that in its memory."""
        return ManifestReference(
            branch=self.branch(reference.branch),
            epoch=reference.epoch,
            path=self.path(reference.path),
            sha256=hashlib.sha256(f"not copied: {reference.sha256}".encode()).hexdigest(),
        )

    def header(self, header: BundleHeader, snapshot: ManifestReference) -> BundleHeader:
        """``snapshot``: the new one. Where it comes from stays: its origin, the names of applications."""
        return header.model_copy(
            update={
                "snapshot": snapshot,
                "since": self.since,
                "branches": tuple(self._branch(branch) for branch in header.branches),
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
        """``sha256``: what it has; ``parent``: the new one, ``None`` where it is not here."""
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
        return file.model_copy(update={"path": self.path(file.path)})

    def _delta(self, delta: DeltaFile) -> DeltaFile:
        return delta.model_copy(update={"file": self._file(delta.file)})

    def _base(self, base: BaseFile) -> BaseFile:
        return base.model_copy(update={"at": self.key(base.at), "file": self._file(base.file)})

    def _loop(self, loop: RecordsInFlight) -> RecordsInFlight:
        return loop.model_copy(update={"files": tuple(self._in_flight(part) for part in loop.files)})

    def _in_flight(self, part: FileInFlight) -> FileInFlight:
        return part.model_copy(update={"file": self._file(part.file)})

    def _conditions(self, conditions: EpochConditions) -> EpochConditions:
        """The standing queries of the epoch are a file."""
        if conditions.queries is None:
            return conditions
        queries = conditions.queries.model_copy(update={"path": self.path(conditions.queries.path)})
        return conditions.model_copy(update={"queries": queries})

    def _sink(self, sink: SinkHandles) -> SinkHandles:
        return sink.model_copy(update={"handles": tuple(self._handle(handle) for handle in sink.handles)})

    def _handle(self, handle: Handle) -> Handle:
        """What it says is the sink's own; segments of write-ahead logs are files of the store."""
        return handle.model_copy(update={"payload": self._paths(handle.payload)})

    def _paths(self, said: Any) -> Any:
        match said:
            case str() if layout.place_of(said) is not None:
                return self.path(said)
            case list():
                return [self._paths(each) for each in said]
            case dict():
                return {name: self._paths(each) for name, each in said.items()}
        return said

    def _changes(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """A branch that began at a snapshot says at which one; from where an earlier import came stays."""
        return tuple(
            change.model_copy(update={"detail": {**change.detail, "branch": self.branch(change.detail["branch"])}})
            if isinstance(change.detail.get("branch"), str)
            else change
            for change in changes
        )
