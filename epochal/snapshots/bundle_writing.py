"""Writing a bundle. Files are copied in pieces and are never held in memory."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from epochal.contracts.catalog import ManifestReference
from epochal.errors import FileCorrupt
from epochal.snapshots import bundle_format as form
from epochal.snapshots import layout
from epochal.snapshots.bundle_format import BundleEnd, BundleEpoch, BundleHeader
from epochal.snapshots.manifest import FileReference, Manifest
from epochal.snapshots.references import References
from epochal.snapshots.store import SnapshotStore

_PIECE = 4 << 20


@dataclass(frozen=True)
class BundleFiles:
    """Content of a bundle. ``since``: the snapshot that an importer must have, if any; ``manifests``: newest first;
    ``files``: in order, without duplicates of the same content, and without those in packs; ``packs``: whole packs, by
    path."""

    since: ManifestReference | None
    manifests: tuple[ManifestReference, ...]
    files: tuple[FileReference, ...]
    packs: Mapping[str, FileReference]

    @property
    def pack_members(self) -> tuple[FileReference, ...]:
        """The packs, without duplicates of the same content."""
        return tuple({pack.sha256: pack for pack in self.packs.values()}.values())

    @property
    def checksums_of_packs(self) -> dict[str, str]:
        """For the header."""
        return {path: pack.sha256 for path, pack in self.packs.items()}

    @property
    def members(self) -> int:
        """Number of the members."""
        return len(self.manifests) + len(self.pack_members) + len(self.files)

    def size(self, store: SnapshotStore) -> int:
        """Total size of the members, in bytes."""
        manifests = sum(
            store.size(reference.path) - layout.manifest_offset(reference.path) for reference in self.manifests
        )
        return manifests + sum(file.bytes for file in (*self.pack_members, *self.files))


def files_of(store: SnapshotStore, snapshot: ManifestReference, since: ManifestReference | None) -> BundleFiles:
    """Manifests, packs and files that ``snapshot`` needs and ``since`` does not. Raises ``FileMissing``,
    ``FileCorrupt``.

    If all bases of ``snapshot`` are newer than ``since``, the content is the whole snapshot: the manifests of an
    increment would not reach ``since``. In another project, where a manifest has the checksum of its renamed parent,
    two increments since one snapshot would then rename the same manifest differently.
    """
    manifests, needed = needed_files(store, snapshot, since)
    if since is not None and not reaches(store, manifests, since):
        since = None
        manifests, needed = needed_files(store, snapshot, None)
    packs = [reference.path for reference in manifests if layout.manifest_offset(reference.path)]
    packs += [file.within.path for file in needed if file.within is not None]
    files = {file.sha256: file for file in reversed(needed) if file.within is None}
    return BundleFiles(
        since,
        tuple(manifests),
        tuple(reversed(files.values())),
        {path: _whole(store, path) for path in dict.fromkeys(packs)},
    )


def reaches(store: SnapshotStore, manifests: Sequence[ManifestReference], since: ManifestReference) -> bool:
    """Return whether ``since`` is the parent of the oldest of ``manifests``, which are listed newest first. Without
    any, the snapshot is ``since`` itself."""
    return not manifests or store.read_manifest(manifests[-1]).parent == since


def needed_files(
    store: SnapshotStore, snapshot: ManifestReference, since: ManifestReference | None
) -> tuple[list[ManifestReference], list[FileReference]]:
    """Manifests, newest first, and the files that they name which ``snapshot`` needs and ``since`` does not."""
    references = References(store)
    needed = references.names(snapshot)
    if since is not None:
        needed -= references.names(since)
    manifests: list[ManifestReference] = []
    files: dict[str, FileReference] = {}
    reference: ManifestReference | None = snapshot
    while reference is not None and reference.path in needed:
        manifest = store.read_manifest(reference)
        manifests.append(reference)
        for file in named_files(manifest):
            if file.path in needed:
                files.setdefault(file.path, file)
        reference = manifest.parent
    return manifests, list(files.values())


def _whole(store: SnapshotStore, pack: str) -> FileReference:
    """A reference to a pack as a file, with its manifest."""
    file = FileReference(path=pack, sha256="", bytes=store.size(pack, "a bundle"), rows=0)
    digest = hashlib.sha256()
    with store.open(file, "a bundle") as source:
        while piece := source.read(_PIECE):
            digest.update(piece)
    return file.model_copy(update={"sha256": digest.hexdigest()})


def named_files(manifest: Manifest) -> Iterator[FileReference]:
    """Deltas, bases, records in flight and standing queries that a manifest names."""
    yield from (base.file for base in manifest.bases)
    yield from (delta.file for delta in manifest.deltas)
    yield from manifest.in_force


class BundleWriter:
    """Writes members in order. ``progress``: number of bytes written."""

    def __init__(self, target: BinaryIO) -> None:
        self._compressed = pa.CompressedOutputStream(pa.PythonFile(target, mode="w"), "zstd")
        self.progress = 0

    def header(self, header: BundleHeader, epochs: bytes) -> None:
        data = header.model_dump_json().encode()
        self._end = BundleEnd(header_sha256=hashlib.sha256(data).hexdigest(), members=header.members)
        self.member(form.HEADER, data)
        self.member(form.EPOCHS, epochs)

    def member(self, name: str, data: bytes) -> None:
        self._begin(name, len(data))
        self._write(data, len(data))

    def file(self, store: SnapshotStore, kind: str, file: FileReference) -> None:
        """``kind``: packs or files. Raises ``FileCorrupt`` when the file in the store does not match its checksum."""
        self._begin(kind + file.sha256, file.bytes)
        digest = hashlib.sha256()
        with store.open(file, "a bundle") as source:
            while piece := source.read(_PIECE):
                digest.update(piece)
                self._compressed.write(piece)
                self.progress += len(piece)
        self._pad(file.bytes)
        if digest.hexdigest() != file.sha256:
            raise FileCorrupt(f"{store.location(file.path)} does not have the checksum recorded for it.")

    def local_file(self, name: str, path: Path) -> None:
        self.member(name, path.read_bytes())

    def close(self) -> None:
        self.member(form.END, self._end.model_dump_json().encode())
        self._compressed.write(bytes(2 * form.BLOCK))
        self._compressed.close()

    def _begin(self, name: str, size: int) -> None:
        about = tarfile.TarInfo(name)
        about.size, about.mode = size, 0o644
        self._compressed.write(about.tobuf(tarfile.USTAR_FORMAT))

    def _write(self, data: bytes, size: int) -> None:
        self._compressed.write(data)
        self.progress += size
        self._pad(size)

    def _pad(self, size: int) -> None:
        self._compressed.write(bytes(-size % form.BLOCK))


def _manifest(store: SnapshotStore, reference: ManifestReference) -> bytes:
    """The stored bytes of a manifest, which another version of Epochal may have encoded."""
    data = store.manifest_bytes(reference.path, f"snapshot {reference.key}")
    if hashlib.sha256(data).hexdigest() != reference.sha256:
        raise FileCorrupt(f"{store.location(reference.path)} does not have the checksum recorded for it.")
    return data


def encoded_epochs(epochs: Sequence[BundleEpoch]) -> bytes:
    """Encode epochs as JSON, one per line."""
    lines = io.BytesIO()
    for epoch in epochs:
        lines.write(epoch.model_dump_json().encode() + b"\n")
    return lines.getvalue()


def write_bundle(
    target: BinaryIO,
    store: SnapshotStore,
    header: BundleHeader,
    epochs: bytes,
    files: BundleFiles,
    artifacts: Mapping[str, Path],
) -> Iterator[int]:
    """Write a bundle; yields the number of bytes written so far. ``artifacts``: paths of the code by sha256."""
    writer = BundleWriter(target)
    writer.header(header, epochs)
    for sha256, path in artifacts.items():
        writer.local_file(form.ARTIFACTS + sha256, path)
        yield writer.progress
    for reference in files.manifests:
        writer.member(form.MANIFESTS + reference.sha256, _manifest(store, reference))
        yield writer.progress
    for pack in files.pack_members:
        writer.file(store, form.PACKS, pack)
        yield writer.progress
    for file in files.files:
        writer.file(store, form.FILES, file)
        yield writer.progress
    writer.close()
    yield writer.progress
