"""Files that a snapshot needs: the manifests, deltas, bases and records in flight to read it and to continue from it.

The walk is that of :func:`epochal.snapshots.lineage.read_chains` for all state tables together, and that of a recovery,
which searches for the sources' checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.snapshots.manifest import FileReference, Manifest
from epochal.snapshots.store import SnapshotStore


@dataclass(frozen=True, slots=True)
class NeededFile:
    """A needed file. ``bytes``: ``None`` for a manifest, whose size is not recorded."""

    path: str
    sha256: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class _Summary:
    """The part of a manifest that the walk needs."""

    own: NeededFile
    key: EpochKey
    parent: ManifestReference | None
    tables: frozenset[str]
    deltas: tuple[NeededFile, ...]
    bases: tuple[NeededFile, ...]
    in_flight: tuple[NeededFile, ...]
    base_at: EpochKey | None
    has_checkpoints: bool


class References:
    """Needed files of snapshots. Reads each manifest once and caches a summary."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._known: dict[ManifestReference, _Summary] = {}
        self._used: set[ManifestReference] = set()

    def needed(self, snapshot: ManifestReference) -> set[str]:
        """The paths of all files that the snapshot needs, its own manifest too.

        Raises ``FileMissing``, ``FileCorrupt`` for a manifest that cannot be read; other files are not checked.
        """
        return set(self.files(snapshot))

    def files(self, snapshot: ManifestReference) -> dict[str, NeededFile]:
        """Like :meth:`needed`, with the recorded checksums and sizes."""
        own = self._summary(snapshot)
        needed = {file.path: file for file in own.in_flight}
        tables = own.tables
        base_at: EpochKey | None = None
        state, slices = bool(tables), True
        for manifest in self._walk(snapshot):
            needed[manifest.own.path] = manifest.own
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
        return needed

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


def _needed(file: FileReference) -> NeededFile:
    return NeededFile(file.path, file.sha256, file.bytes)


def _summary(reference: ManifestReference, manifest: Manifest) -> _Summary:
    return _Summary(
        own=NeededFile(reference.path, reference.sha256, None),
        key=manifest.key,
        parent=manifest.parent,
        tables=frozenset(table.id for table in manifest.tables if table.durable),
        deltas=tuple(_needed(delta.file) for delta in manifest.deltas),
        bases=tuple(_needed(base.file) for base in manifest.bases),
        in_flight=tuple(map(_needed, manifest.in_force)),
        base_at=manifest.bases[0].at if manifest.bases else None,
        has_checkpoints=bool(manifest.source_checkpoints),
    )
