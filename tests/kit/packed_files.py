"""Files of one epoch in a test: the caller decides which are in its pack and which are files of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pyarrow as pa

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.handle import Handle
from epochal.snapshots.manifest import FileReference, Manifest
from epochal.snapshots.packs import Pack
from epochal.snapshots.store import SnapshotStore


class EpochFiles:
    """A ``FileWriter``. ``is_small``: called for each file; small ones are in the pack."""

    def __init__(self, store: SnapshotStore, is_small: Callable[[], bool]) -> None:
        self._store = store
        self._is_small = is_small
        self._small: dict[str, bytes] = {}

    def write_file(self, path: str, data: pa.Buffer | bytes, rows: int) -> FileReference:
        if not self._is_small():
            return self._store.write_file(path, data, rows)
        content = self._small[path] = bytes(data)
        return FileReference(path=path, sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), rows=rows)

    def write_manifest(self, manifest: Manifest) -> ManifestReference:
        """Write a manifest that names the files, with the pack if there are small ones."""
        if not self._small:
            return self._store.write_manifest(manifest)
        pack = Pack.of(manifest.key, manifest.attempt, self._small)
        return self._store.write_manifest(_placed(manifest, pack), pack)


def _placed(manifest: Manifest, pack: Pack) -> Manifest:
    """The manifest with the places of the files, also of those in payloads of sinks."""
    document = Handle(
        owner="", subtask=0, rows=0, bytes=0, payload=manifest.model_dump(mode="json"), carried=dict(pack.files)
    )
    return Manifest.model_validate(pack.placed(document).payload)
