"""Contents of a snapshot store."""

from __future__ import annotations

from epochal.snapshots import layout
from epochal.snapshots.store import SnapshotStore


def snapshot_files(store: SnapshotStore) -> list[str]:
    """Return the sorted paths of all files of branches, without files that a catalog names individually."""
    return [path for path in store.list("") if path.partition("/")[0] not in layout.OF_THE_CATALOG]
