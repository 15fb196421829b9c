"""Files of one task attempt: small ones are passed to the driver in the handle, others are written to the store."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import pyarrow as pa

from epochal.errors import EpochalError
from epochal.snapshots.manifest import FileReference
from epochal.snapshots.packs import TASK_BYTES
from epochal.snapshots.store import SnapshotStore


class TaskFiles:
    """The files of one transaction of a task, which a manifest will name."""

    def __init__(self, store: SnapshotStore, carried_bytes: int | None = None) -> None:
        """``carried_bytes``: maximum size of all files in the handle; by default :data:`TASK_BYTES`."""
        self._store = store
        self._most = TASK_BYTES if carried_bytes is None else carried_bytes
        self._written: list[FileReference] = []
        self._carried_bytes = 0
        self.carried: dict[str, bytes] = {}
        """Small files by path, for ``Handle.carried``."""

    def write_file(self, path: str, data: pa.Buffer, rows: int) -> FileReference:
        """Add a file to the handle, or write it. Raises ``StorageFull`` or ``SnapshotError`` when a large file cannot
        be written."""
        if self._carried_bytes + data.size > self._most:
            self._written.append(self._store.write_file(path, data, rows))
            return self._written[-1]
        content = data.to_pybytes()
        self._carried_bytes += len(content)
        self.carried[path] = content
        return FileReference(path=path, sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), rows=rows)

    def discard(self) -> None:
        """Delete the written files. Those that cannot be deleted now are left to the sweep."""
        self.carried.clear()
        while self._written:
            with suppress(EpochalError, OSError):
                self._store.delete(self._written.pop().path)
