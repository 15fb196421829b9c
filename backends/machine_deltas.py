"""Small deltas in a folder of this machine, from which the next tasks of other processes read them.

Spark gives a subtask to any idle Python worker. A worker that did not write the latest deltas of its subtask would
otherwise read each from a remote store. The files are not synced, are checked when they are read, and may be lost.

Each subtask of a state table has :data:`SLOTS` files; an epoch overwrites the one of the epoch :data:`SLOTS` before it,
so that the folder needs no removal.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from epochal.backends.boot_folders import boot_folder
from epochal.errors import SnapshotError
from epochal.snapshots import layout, read_counts
from epochal.snapshots.local_files import write_whole
from epochal.snapshots.manifest import FileReference
from epochal.snapshots.store import SnapshotStore

SLOTS: Final = 32


class MachineDeltas(SnapshotStore):
    """A remote store, with the small deltas that tasks of this machine wrote lately."""

    def __init__(self, store: SnapshotStore, cache_directory: str) -> None:
        super().__init__(store.url)
        self._folder = Path(cache_directory) / "deltas"

    def leave(self, file: FileReference, data: bytes) -> None:
        """Store a delta for later tasks. Does nothing if the folder cannot be written, or is another user's."""
        with suppress(OSError, SnapshotError):
            place = self._place(file)
            place.parent.mkdir(exist_ok=True)
            write_whole(place, memoryview(data))

    def bytes_of(self, file: FileReference, of: str) -> bytes:
        if file.within is not None:
            with suppress(OSError, SnapshotError):
                data = self._place(file).read_bytes()
                if hashlib.sha256(data).hexdigest() == file.sha256:
                    read_counts.count("disk", len(data))
                    return data
        return super().bytes_of(file, of)

    def _place(self, file: FileReference) -> Path:
        folder, _, name = file.path.rpartition("/")
        subtask = hashlib.sha256(f"{self.url} {folder.partition('/')[0]} {name.rpartition('-')[0]}".encode())
        place = layout.place_of(file.path)
        slot = 0 if place is None else place.epoch % SLOTS
        return boot_folder(self._folder) / subtask.hexdigest()[:2] / f"{subtask.hexdigest()}-{slot}"


def with_machine_deltas(store: SnapshotStore, cache_directory: str) -> SnapshotStore:
    """``store``; if it is remote, with the deltas of this machine."""
    return store if store.is_near else MachineDeltas(store, cache_directory)
