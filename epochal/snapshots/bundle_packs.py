"""Checks of the packs of an untrusted bundle: that they are what its manifests name."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import PackPlace
from epochal.errors import NewerFormat
from epochal.snapshots import layout
from epochal.snapshots.bundle_format import BundleError
from epochal.snapshots.manifest import FileReference, Manifest

_PIECE = 1 << 20
_LARGEST_MANIFEST = 16 << 20

Part = tuple[int, int, str]
"""Offset, size and checksum of a file in a pack."""


class PackChecks:
    """Checks of packs. All manifests must be added before the first pack is read.

    ``checksums``: checksums of the packs of the bundle, by checked path. Manifests may also name files in packs that
    the bundle does not have: the importer has them, or does not need them.
    """

    def __init__(self, checksums: Mapping[str, str]) -> None:
        self._checksums = checksums
        self._paths: dict[str, list[str]] = defaultdict(list)
        for path, sha256 in checksums.items():
            self._paths[sha256].append(path)
        self._parts: dict[str, set[Part]] = defaultdict(set)
        self._manifests: dict[str, str] = {}
        self._reading = False

    def add_manifest(self, reference: ManifestReference) -> bool:
        """Add a manifest in a pack. ``False`` if the bundle does not have the pack."""
        self._manifests[reference.path] = reference.sha256
        return reference.path in self._checksums and not self._reading

    def add_file(self, file: FileReference, place: PackPlace) -> bool:
        """Add a file that a manifest names. ``False`` if it cannot be in its pack."""
        self._parts[place.path].add((place.offset, file.bytes, file.sha256))
        return (
            min(place.offset, file.bytes) >= 0
            and place.offset + file.bytes <= layout.manifest_offset(place.path)
            and file.path.partition("/")[0] == place.path.partition("/")[0]
            and not self._reading
        )

    def paths(self, sha256: str) -> tuple[str, ...]:
        """Paths of the pack with this checksum; none if the header does not name it, or no manifest does."""
        paths = tuple(self._paths.get(sha256, ()))
        return paths if all(path in self._parts or path in self._manifests for path in paths) else ()

    def matches(self, sha256: str, pack: Path) -> bool:
        """Return whether the content of a pack is what the manifests name."""
        self._reading = True
        with pack.open("rb") as content:
            size = pack.stat().st_size
            return all(self._matches(path, content, size) for path in self._paths.pop(sha256))

    def check_all_read(self) -> None:
        """Raise ``BundleError`` unless all packs of the header were read."""
        if self._paths:
            raise BundleError("The bundle names packs that it does not contain: it was altered.")

    def _matches(self, path: str, content: BinaryIO, size: int) -> bool:
        offset = layout.manifest_offset(path)
        return (
            size >= offset
            and all(_sha256(content, first, length) == sha256 for first, length, sha256 in self._parts[path])
            and self._ends_well(path, content, offset, size - offset)
        )

    def _ends_well(self, path: str, content: BinaryIO, offset: int, size: int) -> bool:
        """Return whether a pack ends with its manifest. It may have none, or one that the bundle does not have."""
        if path in self._manifests:
            return _sha256(content, offset, size) == self._manifests[path]
        return size == 0 or (size <= _LARGEST_MANIFEST and _is_manifest(path, _read(content, offset, size)))


def _is_manifest(path: str, data: bytes) -> bool:
    """Return whether this is a manifest of the epoch in the path. Discovery without a catalog reads it."""
    try:
        manifest = Manifest.decode(data, path)
    except (NewerFormat, ValueError):
        return False
    place = layout.place_of(path)
    return place is not None and (manifest.branch, manifest.epoch) == (place.branch, place.epoch)


def _read(content: BinaryIO, offset: int, size: int) -> bytes:
    content.seek(offset)
    return content.read(size)


def _sha256(content: BinaryIO, offset: int, size: int) -> str:
    digest = hashlib.sha256()
    content.seek(offset)
    while size and (piece := content.read(min(size, _PIECE))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()
