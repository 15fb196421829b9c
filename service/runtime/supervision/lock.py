"""One supervisor per data directory: a second control plane on it stands by, and serves everything else."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from epochal.service.domain.identifiers import new_id


class SupervisionLock:
    """Held until the process ends, however it ends. The file's content is the data folder's id."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def folder(self) -> str:
        """The id of the data folder, the same for every process that ever held the lock. A copy has another one."""
        assert self._descriptor is not None  # only its holder asks
        return f"{os.pread(self._descriptor, 32, 0).decode()}-{os.fstat(self._descriptor).st_ino}"

    def acquire(self) -> bool:
        """Whether this process is the one that supervises. Does not wait."""
        if self._descriptor is not None:
            return True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        if os.fstat(descriptor).st_size == 0:
            os.pwrite(descriptor, new_id().encode(), 0)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
