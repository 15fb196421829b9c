"""Changes of prepared epochs on top of a replica, for ``read_uncommitted``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock

from epochal.contracts.identity import EpochKey
from epochal.service.runtime.replicas.changes import RowEncoder
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable

Changes = dict[bytes, bytes | None]
"""Values by encoded key; ``None`` for a deleted row."""

_EPOCHS_KEPT = 8


class Overlays:
    """Cache of changes by (table, epoch). A prepared epoch is read once; the 8 most recently read entries are kept."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, EpochKey], Changes] = OrderedDict()
        self._lock = Lock()

    def over(self, table: StateTable, manifests: Sequence[Manifest]) -> list[Changes]:
        """Return the changes of each epoch, in the order given. Raises ``FileMissing``, ``FileCorrupt``."""
        return [self._changes(table, manifest) for manifest in manifests]

    def _changes(self, table: StateTable, manifest: Manifest) -> Changes:
        key = (table.id, manifest.key)
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None:
            return kept
        changes = self._read(table, manifest)
        with self._lock:
            self._kept[key] = changes
            if len(self._kept) > _EPOCHS_KEPT:
                self._kept.popitem(last=False)
        return changes

    def _read(self, table: StateTable, manifest: Manifest) -> Changes:
        encoder, changes = RowEncoder(table), Changes()
        for delta in manifest.deltas:
            if delta.table == table.id:
                encoded = encoder.delta(self._store, delta)
                for chunk in encoded.puts():
                    changes.update(chunk)
                for keys in encoded.deletes():
                    changes.update(dict.fromkeys(keys))
        return changes


def value_of(key: bytes, committed: bytes | None, overlays: Sequence[Changes]) -> bytes | None:
    """Return the value of a key from the newest overlay that contains it, or else the committed value."""
    for changes in reversed(overlays):
        if key in changes:
            return changes[key]
    return committed


def scan_of(
    prefix: bytes, committed: Sequence[tuple[bytes, bytes]], overlays: Sequence[Changes]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows whose key starts with ``prefix``, in key order."""
    merged: Changes = dict(committed)
    for changes in overlays:
        merged.update((key, value) for key, value in changes.items() if key.startswith(prefix))
    for key in sorted(merged):
        value = merged[key]
        if value is not None:
            yield key, value
