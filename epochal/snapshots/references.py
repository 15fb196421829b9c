"""Files that a snapshot needs: the manifests, deltas, bases and records in flight to read it and to continue from it.

The walk is that of :func:`epochal.snapshots.lineage.read_chains` for all state tables together, and that of a recovery,
which searches for the sources' checkpoints.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.snapshots import layout
from epochal.snapshots.manifest import FileReference, Manifest
from epochal.snapshots.store import SnapshotStore


@dataclass(frozen=True, slots=True)
class NeededPart:
    """A file in a pack, or its manifest, which extends to the end (``size``: ``None``)."""

    offset: int
    size: int | None
    sha256: str

    def is_in(self, pack: bytes) -> bool:
        """True if ``pack``, a whole file, has this part."""
        end = None if self.size is None else self.offset + self.size
        return hashlib.sha256(memoryview(pack)[self.offset : end]).hexdigest() == self.sha256


@dataclass(frozen=True, slots=True)
class NeededFile:
    """A needed file of the store. ``sha256``, ``bytes``: ``None`` where they are not recorded: the size of a manifest,
    both of a pack. ``parts``: the needed parts of a pack."""

    path: str
    sha256: str | None
    bytes: int | None
    parts: tuple[NeededPart, ...] = ()


@dataclass(frozen=True, slots=True)
class _Summary:
    """The part of a manifest that the walk needs. ``path``: its own."""

    path: str
    key: EpochKey
    parent: ManifestReference | None
    tables: frozenset[str]
    sha256: str
    deltas: tuple[FileReference, ...]
    bases: tuple[FileReference, ...]
    in_flight: tuple[FileReference, ...]
    base_at: EpochKey | None
    has_checkpoints: bool


class References:
    """Needed files of snapshots. Reads each manifest once and caches a summary."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._known: dict[ManifestReference, _Summary] = {}
        self._used: set[ManifestReference] = set()

    def needed(self, snapshot: ManifestReference) -> set[str]:
        """The paths of all files of the store that the snapshot needs, its own manifest too.

        Raises ``FileMissing``, ``FileCorrupt`` for a manifest that cannot be read; other files are not checked.
        """
        manifests, files = self.named(snapshot)
        return {*manifests, *(file.stored_in for file in files.values())}

    def files(self, snapshot: ManifestReference) -> dict[str, NeededFile]:
        """Like :meth:`needed`, with the recorded checksums and sizes."""
        manifests, named = self.named(snapshot)
        files = {file.path: NeededFile(file.path, file.sha256, file.bytes) for file in named.values()}
        files |= {path: NeededFile(path, sha256, None) for path, sha256 in manifests.items()}
        parts: dict[str, list[NeededPart]] = defaultdict(list)
        for file in named.values():
            if file.within is not None:
                del files[file.path]
                parts[file.within.path].append(NeededPart(file.within.offset, file.bytes, file.sha256))
        for path, sha256 in manifests.items():
            if offset := layout.manifest_offset(path):
                parts[path].append(NeededPart(offset, None, sha256))
        return files | {path: NeededFile(path, None, None, tuple(found)) for path, found in parts.items()}

    def names(self, snapshot: ManifestReference) -> set[str]:
        """Paths of the needed manifests, and the names of the other needed files, which may lie in packs."""
        manifests, files = self.named(snapshot)
        return manifests.keys() | files.keys()

    def named(self, snapshot: ManifestReference) -> tuple[dict[str, str], dict[str, FileReference]]:
        """The needed manifests, by path with the checksum, and the other needed files, by name."""
        own = self._summary(snapshot)
        manifests: dict[str, str] = {}
        needed = {file.path: file for file in own.in_flight}
        tables = own.tables
        base_at: EpochKey | None = None
        state, slices = bool(tables), True
        for manifest in self._walk(snapshot):
            manifests[manifest.path] = manifest.sha256
            if state:
                if base_at is None and manifest.base_at is not None:
                    base_at = manifest.base_at
                    needed.update((file.path, file) for file in manifest.bases)
                if manifest.key == base_at:
                    state = False
                else:
                    needed.update((file.path, file) for file in manifest.deltas)
                    state = bool(tables & manifest.tables)
            slices = slices and not manifest.has_checkpoints
            if not state and not slices:
                break
        return manifests, needed

    def last_bases(self, snapshot: ManifestReference) -> EpochKey | None:
        """The epoch of the bases that the snapshot's chains begin with."""
        return next((manifest.base_at for manifest in self._walk(snapshot) if manifest.base_at is not None), None)

    def forget_unused(self) -> None:
        """Drop summaries that were not used since the last call."""
        self._known = {reference: summary for reference, summary in self._known.items() if reference in self._used}
        self._used.clear()

    def _walk(self, snapshot: ManifestReference) -> Iterator[_Summary]:
        reference: ManifestReference | None = snapshot
        while reference is not None:
            summary = self._summary(reference)
            yield summary
            reference = summary.parent

    def _summary(self, reference: ManifestReference) -> _Summary:
        self._used.add(reference)
        known = self._known.get(reference)
        if known is None:
            known = self._known[reference] = _summary(reference, self._store.read_manifest(reference))
        return known


def _summary(reference: ManifestReference, manifest: Manifest) -> _Summary:
    return _Summary(
        path=reference.path,
        sha256=reference.sha256,
        key=manifest.key,
        parent=manifest.parent,
        tables=frozenset(table.id for table in manifest.tables if table.durable),
        deltas=tuple(delta.file for delta in manifest.deltas),
        bases=tuple(base.file for base in manifest.bases),
        in_flight=manifest.in_force,
        base_at=manifest.bases[0].at if manifest.bases else None,
        has_checkpoints=bool(manifest.source_checkpoints),
    )
