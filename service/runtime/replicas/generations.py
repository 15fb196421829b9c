"""The replica of one state table as a sequence of generations, one of which is current.

A generation with readers only moves forward. Any other change, such as a rebuild or a larger map, creates a new
generation in its own folder. Readers of the old generation keep it until they release it, even after its folder has
been deleted. Folder names are never reused, so a name identifies a generation permanently.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import lmdb

from epochal.errors import EnvironmentProblem, StorageFull
from epochal.service.runtime.replicas.replica import UNREADABLE, Replica

log = logging.getLogger("epochal.replicas")

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TOO_MANY_OPEN = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))
"""Message texts, because LMDB errors have no error number."""


class Generations:
    """The generations of one replica. Used from one thread. ``current`` is ``None`` before the first generation."""

    def __init__(self, directory: Path, name: str | None = None) -> None:
        """``name``: the generation left by an earlier process; ignored if it cannot be read."""
        self.directory = directory
        self.current: Replica | None = None
        if name is None or not (directory / name / "data.mdb").is_file():
            return
        try:
            self.current = Replica.open(directory / name)
        except (lmdb.Error, OSError) as error:
            log.warning("replica %s cannot be read (%s); rebuilding it", directory / name, error)

    def begin(self, map_bytes: int) -> Replica:
        """Create an empty generation, which is not current yet."""
        return Replica.open(self._new_folder(), map_bytes)

    def adopt(self, replica: Replica) -> None:
        """Make ``replica`` current. The previous generation may still have readers; :meth:`clear` deletes its files."""
        self.current = replica

    def grow(self, replica: Replica) -> Replica:
        """Copy ``replica`` into a generation with a map of twice the size, and make the copy current."""
        folder = self._new_folder()
        try:
            folder.mkdir(parents=True)
            replica.environment.copy(str(folder), compact=True)
            copy = Replica.open(folder)
            copy.set_map(2 * replica.map_bytes)
        except (lmdb.Error, OSError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        log.info("replica %s has grown into %s", replica.directory, folder.name)
        self.adopt(copy)
        return copy

    def discard(self, replica: Replica) -> None:
        """Close and delete a generation that never became current."""
        replica.close()
        shutil.rmtree(replica.directory, ignore_errors=True)

    def clear(self) -> None:
        """Delete the folders of all generations except the current one."""
        kept = None if self.current is None else self.current.directory
        with suppress(FileNotFoundError):
            for folder in self.directory.iterdir():
                if folder != kept:
                    shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        if self.current is not None:
            self.current.close()
            self.current = None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert disk errors. Raises ``StorageFull`` and ``EnvironmentProblem``; ``UNREADABLE`` passes through."""
        try:
            yield
        except UNREADABLE:
            raise
        except (lmdb.Error, OSError) as error:
            if isinstance(error, lmdb.DiskError) or getattr(error, "errno", None) in _FULL:
                raise StorageFull(
                    f"There is no space left for the replica {self.directory}: {error}. Look-ups continue at its "
                    "current epoch. Free some space; the replica then catches up."
                ) from error
            if any(reason in str(error) for reason in _TOO_MANY_OPEN):
                raise EnvironmentProblem(
                    f"The replica {self.directory} cannot be opened: {error}. Look-ups continue at its current epoch. "
                    "Each queryable table keeps two files open: raise the hard limit of open files of this process "
                    "(ulimit -Hn, LimitNOFILE of systemd), and restart it."
                ) from error
            raise EnvironmentProblem(
                f"The replica {self.directory} cannot be written: {error}. Look-ups continue at its current epoch. "
                "Grant this user write access; the replica then catches up."
            ) from error

    def _new_folder(self) -> Path:
        return self.directory / uuid4().hex[:16]
