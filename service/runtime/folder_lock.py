"""The lock of a data folder: one control plane, where the catalog is in the folder. A second one stands by."""

from __future__ import annotations

from pathlib import Path

from epochal.background.locks import FileLock


class FolderLock:
    """Held until :meth:`release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None

    def acquire(self) -> bool:
        """Return ``True`` if this process holds the lock. Does not wait."""
        if self._lock is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = FileLock.acquire(self.path)
            except OSError:
                return False
        return self._lock is not None

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
