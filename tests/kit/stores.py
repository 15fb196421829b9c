"""What lies in a store."""

from __future__ import annotations

from epochal.snapshots import layout
from epochal.snapshots.store import SnapshotStore


def snapshot_files(store: SnapshotStore) -> list[str]:
    """The paths of all files of branches, sorted; without those that a catalog names one by one."""
    return [path for path in store.list("") if path.partition("/")[0] not in layout.OF_THE_CATALOG]
