"""Verification of a store: every file that snapshots need exists and matches its manifest, or is reported.

A finding lists the snapshots that it affects: a damaged delta that is older than an intact base affects only snapshots
before the base. A file can be repaired if it can be written again byte for byte, with the checksum in a manifest or the
catalog: a run from the previous runs and the deltas between, and a manifest that this process has cached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey, PackPlace
from epochal.errors import EpochalError, FileMissing, ForeignFile, NewerFormat, SnapshotError, StoreUnavailable
from epochal.faults import declare
from epochal.snapshots import layout
from epochal.snapshots.base_files import damaged_groups, encoded_base, without_operations
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.compaction import TableChanges, run_rows
from epochal.snapshots.lineage import clock_of
from epochal.snapshots.manifest import BaseFile, DeltaFile, FileReference, Manifest
from epochal.snapshots.merge_policy import Merge
from epochal.snapshots.merging import runs_for
from epochal.snapshots.renaming import written_by
from epochal.snapshots.store import SnapshotStore, StoredFile, remembered

V1_REPAIRED = declare("V1.repaired", "one damaged file was written again, others were not")


class Trouble(StrEnum):
    MISSING = "missing"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"
    """A manifest that names files outside its lineage; these are not checked."""


@dataclass(frozen=True)
class Finding:
    """A damaged or missing file that snapshots need. ``harms``: affected snapshots, oldest first."""

    path: str
    trouble: Trouble
    detail: str
    harms: tuple[EpochKey, ...]
    repaired: bool = False
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """Result of a verification. ``intact``: newest intact snapshot of each branch. ``unreferenced``: files of branches
    that no snapshot needs."""

    snapshots: int
    files: int
    bytes: int
    findings: tuple[Finding, ...]
    unreferenced: tuple[StoredFile, ...]
    intact: Mapping[str, EpochKey]
    cut_off: int = 0
    """Offline: number of manifests left over from collections; they are not damage."""

    @property
    def is_sound(self) -> bool:
        return all(finding.repaired for finding in self.findings)


@dataclass
class _Need:
    """A needed file, the snapshots that need it, and the data for its repair."""

    path: str
    sha256: str
    bytes: int | None
    harms: set[EpochKey] = field(default_factory=set)
    base: BaseFile | None = None
    manifest: ManifestReference | None = None
    within: PackPlace | None = None

    @property
    def stored_in(self) -> str:
        """Path of the file that has the bytes."""
        return self.path if self.within is None else self.within.path


class Verification:
    """One verification of a store. ``roots``: snapshots that must be readable."""

    def __init__(
        self,
        store: SnapshotStore,
        roots: Iterable[ManifestReference],
        *,
        quick: bool = False,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._store = store
        self._roots = sorted(roots, key=lambda reference: reference.key)
        self._quick = quick
        self._progress = progress
        self._needs: dict[str, _Need] = {}
        self._manifests: dict[ManifestReference, Manifest | None] = {}
        self._found: dict[str, tuple[Trouble, str]] = {}
        self._pack = "", b""
        """The pack that was read last: its path and bytes."""

    def run(self, *, repair: bool = False) -> Report:
        """Verify the store and, if ``repair`` is set, repair files. Raises ``SnapshotError`` when the store cannot be
        listed, and ``NewerFormat`` for manifests of a later version."""
        files = {file.path: file for file in self._store.entries()}
        self._progress(f"{len(files)} files: reading manifests")
        for root in self._roots:
            self._walk(root)
        for number, need in enumerate(list(self._needs.values())):
            self._progress(f"{number} of {len(self._needs)} files checked")
            if need.path not in self._found:
                self._check(need, files)
        repaired = self._repair() if repair else set()
        findings = tuple(self._finding(path, path in repaired) for path in sorted(self._found))
        harmed = {key for finding in findings if not finding.repaired for key in finding.harms}
        intact: dict[str, EpochKey] = {}
        for root in self._roots:
            if root.key not in harmed:
                intact[root.branch] = root.key
        needed = {need.stored_in for need in self._needs.values()}
        others = (file for path, file in files.items() if path not in needed)
        return Report(
            snapshots=len(self._roots),
            files=len(needed),
            bytes=sum(files[path].bytes for path in needed if path in files),
            findings=findings,
            unreferenced=tuple(file for file in others if file.path.partition("/")[0] not in layout.OF_THE_CATALOG),
            intact=intact,
        )

    def _walk(self, root: ManifestReference) -> None:
        """Walk back as a reader of all state tables and a recovery do."""
        base_at: EpochKey | None = None
        tables: set[str] | None = None
        state = slices = True
        reference: ManifestReference | None = root
        while reference is not None and (state or slices):
            self._need(root, reference.path, reference.sha256).manifest = reference
            manifest = self._manifest(reference)
            if manifest is None:
                return
            if tables is None:
                tables = {table.id for table in manifest.tables if table.durable}
                state = bool(tables)
                for file in manifest.in_force:
                    self._need_file(root, file)
            if state:
                if base_at is None and manifest.bases:
                    base_at = manifest.bases[0].at
                    for base in manifest.bases:
                        self._need_file(root, base.file).base = base
                if manifest.key == base_at:
                    state = False
                else:
                    for delta in manifest.deltas:
                        self._need_file(root, delta.file)
                    state = bool(tables & {table.id for table in manifest.tables})
            slices = slices and not manifest.source_checkpoints
            reference = manifest.parent

    def _need_file(self, root: ManifestReference, file: FileReference) -> _Need:
        need = self._need(root, file.path, file.sha256)
        need.bytes, need.within = file.bytes, file.within
        return need

    def _need(self, root: ManifestReference, path: str, sha256: str) -> _Need:
        need = self._needs.setdefault(path, _Need(path, sha256, None))
        need.harms.add(root.key)
        return need

    def _manifest(self, reference: ManifestReference) -> Manifest | None:
        """Manifest of a reference, read from the store and not from the cache; ``None`` if it is damaged."""
        if reference not in self._manifests:
            self._manifests[reference] = self._read_manifest(reference)
        return self._manifests[reference]

    def _read_manifest(self, reference: ManifestReference) -> Manifest | None:
        try:
            data = self._store.manifest_bytes(reference.path, f"snapshot {reference.key}")
            if hashlib.sha256(data).hexdigest() != reference.sha256:
                self._found[reference.path] = (Trouble.CORRUPT, "the checksum differs from the recorded one")
                return None
            manifest = Manifest.decode(data, self._store.location(reference.path))
            if manifest.key != reference.key:
                self._found[reference.path] = (Trouble.CORRUPT, f"it is the manifest of {manifest.key}")
                return None
            self._store.check_bounds(reference, manifest)
            return manifest
        except NewerFormat:
            raise
        except ForeignFile as error:
            self._found[reference.path] = (Trouble.FOREIGN, error.message)
        except SnapshotError as error:
            self._found[reference.path] = (Trouble.MISSING, error.message)
        except ValueError as error:
            self._found[reference.path] = (Trouble.CORRUPT, f"not a valid manifest: {error}")
        return None

    def _check(self, need: _Need, files: Mapping[str, StoredFile]) -> None:
        file = files.get(need.stored_in)
        if file is None:
            where = "the store" if need.within is None else f"the store: its pack {need.within.path} is missing"
            self._found[need.path] = (Trouble.MISSING, f"it is not in {where}")
        elif need.within is None and need.bytes is not None and file.bytes != need.bytes:
            self._found[need.path] = (Trouble.CORRUPT, f"{file.bytes} bytes instead of {need.bytes}")
        elif need.within is not None and file.bytes < need.within.offset + (need.bytes or 0):
            self._found[need.path] = (Trouble.CORRUPT, f"its pack {need.within.path} is truncated")
        elif not self._quick and need.manifest is None:
            try:
                data = self._data(need)
            except SnapshotError as error:
                self._found[need.path] = (Trouble.MISSING, error.message)
            else:
                if hashlib.sha256(data).hexdigest() != need.sha256:
                    self._found[need.path] = (Trouble.CORRUPT, _damage(need, data))

    def _data(self, need: _Need) -> bytes:
        if need.within is None:
            return self._store.read(need.path)
        path, offset = need.within.path, need.within.offset
        if self._pack[0] != path:
            self._pack = path, self._store.read(path)
        return self._pack[1][offset : offset + (need.bytes or 0)]

    def _repair(self) -> set[str]:
        """Manifests first: a base is rebuilt from what they name."""
        repaired: set[str] = set()
        damaged = [path for path, (trouble, _) in self._found.items() if trouble is not Trouble.FOREIGN]
        for path in sorted(damaged, key=lambda path: (self._needs[path].manifest is None, path)):
            need = self._needs[path]
            data = _manifest_again(need) if need.manifest is not None else self._base_again(need)
            if data is not None and hashlib.sha256(data).hexdigest() == need.sha256:
                self._store.write(path, self._before_manifest(path) + data)
                repaired.add(path)
                V1_REPAIRED.hit()
        return repaired

    def _before_manifest(self, path: str) -> bytes:
        """The files of a pack whose manifest is damaged; damaged and missing ones are other findings."""
        offset = layout.manifest_offset(path)
        try:
            return self._store.read(path)[:offset].ljust(offset, b"\0") if offset else b""
        except FileMissing:
            return bytes(offset)

    def _base_again(self, need: _Need) -> bytes | None:
        """The run encoded again from the previous runs that it replaced and the deltas between. ``None`` when the
        snapshot at which it was written cannot be read."""
        if need.base is None:
            return None
        place = layout.place_of(need.path)
        written_at = EpochKey(place.branch, place.epoch) if place is not None else need.base.at
        chain = self._chain_at(written_at, need.base.table, need.path)
        manifest = self._at(written_at)
        if chain is None or manifest is None:
            return None
        table = next((table for table in manifest.tables if table.id == need.base.table), None)
        if table is None:
            return None
        groups = need.base.groups
        inputs = tuple(run for run in runs_for(chain.bases, groups) if run.age >= need.base.age)
        try:
            changes = TableChanges(self._store, table, chain).of_groups(groups)
            rows = run_rows(self._store, table, chain, Merge(groups, inputs, need.base.age), changes)
        except StoreUnavailable:
            raise
        except EpochalError:
            return None
        says = EpochKey(written_by(manifest), written_at.epoch)
        return bytes(encoded_base(table, says, groups, without_operations(rows)).data)

    def _at(self, key: EpochKey) -> Manifest | None:
        return next((manifest for manifest in self._manifests.values() if manifest and manifest.key == key), None)

    def _chain_at(self, key: EpochKey, table: str, without: str) -> Chain | None:
        """Chain of a state table at a snapshot; ``None`` if it needs the file ``without``."""
        links: list[Link] = []
        bases: tuple[BaseFile, ...] = ()
        base_at: EpochKey | None = None
        manifest = self._at(key)
        clock = None if manifest is None else clock_of(manifest, table)
        while manifest is not None:
            if base_at is None and manifest.bases:
                bases, base_at = manifest.bases, manifest.bases[0].at
            if manifest.key == base_at or not any(declared.id == table for declared in manifest.tables):
                break
            links.append(Link(manifest.key, _of(manifest.deltas, table)))
            if manifest.parent is None:
                break
            manifest = self._manifest(manifest.parent)
        if manifest is None:
            return None
        of_table = tuple(base for base in bases if base.table == table)
        if any(base.file.path == without for base in of_table):
            return None
        return Chain(base_at, of_table, tuple(reversed(links)), clock)

    def _finding(self, path: str, repaired: bool) -> Finding:
        trouble, detail = self._found[path]
        need = self._needs[path]
        remedy = _remedy(need, trouble, repaired)
        return Finding(path, trouble, detail, tuple(sorted(need.harms)), repaired, remedy)


def _damage(need: _Need, data: bytes) -> str:
    groups = None if need.base is None else damaged_groups(data, need.base)
    where = f"; damaged key groups: {', '.join(map(str, groups))}" if groups else ""
    return f"the checksum differs from its manifest{where}"


def _manifest_again(need: _Need) -> bytes | None:
    known = remembered(need.sha256)
    return None if known is None else known.encode()


def _of(deltas: Iterable[DeltaFile], table: str) -> tuple[DeltaFile, ...]:
    return tuple(delta for delta in deltas if delta.table == table)


def _remedy(need: _Need, trouble: Trouble, repaired: bool) -> str:
    if repaired:
        return "It was written again with the recorded checksum."
    if trouble is Trouble.FOREIGN:
        return "Go back to a snapshot that does not need it."
    restore = "Restore the file from a copy"
    if need.base is not None:
        return (
            f"{restore}; it cannot be rebuilt, since the previous base or deltas between are missing or damaged, too."
        )
    if need.manifest is not None:
        return f"{restore}, or go back to a snapshot that does not need it."
    return (
        f"{restore}, or go back to a snapshot that does not need it; after a new base, later snapshots do not need it."
    )
