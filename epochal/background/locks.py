"""File locks between processes of one machine.

A lock belongs to an open file description: it is held until :meth:`FileLock.release`, or until this process and all
processes that inherited its descriptor have ended. Child processes inherit it only if they are started with
``pass_fds``.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

POLL_SECONDS = 0.002
"""Pause between two attempts while another process holds a lock."""


class FileLock:
    """A lock that this process holds."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path, *, wait: bool = False, mode: int = 0o600) -> FileLock | None:
        """Lock the file, which is created if it is missing; its content does not change.

        Returns ``None`` if another process holds the lock and ``wait`` is false. Raises ``OSError``.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            if lock_descriptor(descriptor, wait=wait):
                return cls(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def release(self) -> None:
        os.close(self.descriptor)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def lock_descriptor(descriptor: int, *, wait: bool = False) -> bool:
    """Lock the open file until all copies of the descriptor are closed. Returns whether this process holds the lock."""
    import filelock  # takes longer to import than Python workers may wait that lock nothing

    return filelock.lock_descriptor(descriptor, blocking=wait, poll_interval=POLL_SECONDS)
