"""Reading ahead: whole files of a remote store, several at a time, in the order in which they will be read.

A chain of fifty deltas would otherwise take fifty requests one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from threading import Lock
from typing import Final

from epochal.errors import FileMissing
from epochal.snapshots.manifest import FileReference
from epochal.snapshots.store import SnapshotStore

_AT_ONCE: Final = 16
_BYTES: Final = 32 << 20
"""Maximum size of the files that are requested and not yet read, except for a single larger file."""


def read_ahead(store: SnapshotStore, files: Iterable[FileReference]) -> SnapshotStore:
    """``store``, which reads these files ahead if it is remote. Each is read once, in this order, from one thread."""
    if store.is_near:
        return store
    found = list(files)
    return store if len(found) < 2 else _ReadAhead(store, found)


class _ReadAhead(SnapshotStore):
    def __init__(self, store: SnapshotStore, files: Iterable[FileReference]) -> None:
        super().__init__(store.url)
        self._store = store
        self._waiting = deque(files)
        self._sizes: dict[str, int] = {}
        self._begun: dict[str, Future[bytes]] = {}
        self._lock = Lock()

    def bytes_of(self, file: FileReference, of: str) -> bytes:
        with self._lock:
            self._begin()
            future = self._begun.pop(file.path, None)
        if future is None:
            return self._store.bytes_of(file, of)
        try:
            return future.result()
        except FileMissing:
            return self._store.bytes_of(file, of)  # its error names the owner
        finally:
            with self._lock:
                del self._sizes[file.path]
                self._begin()

    def _begin(self) -> None:
        """Request further files up to the limits."""
        while self._waiting and len(self._sizes) < _AT_ONCE:
            file = self._waiting[0]
            if self._sizes and sum(self._sizes.values()) + file.bytes > _BYTES:
                return
            self._waiting.popleft()
            if file.path not in self._sizes:
                self._sizes[file.path] = file.bytes
                self._begun[file.path] = _pool().submit(self._store.bytes_of, file, "the store")


@lru_cache(1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="read-ahead")
