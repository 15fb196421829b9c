"""The replica of one state table as a row of generations, of which one is current.

A generation that is read is only ever brought forward. What cannot be done so, another beginning or a larger map, is
done in a new one, in a folder of its own: those who read the old one keep it until they let go, also when its folder is
gone. Names of folders are never used again, so that a name says for good which generation it is.
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
"""LMDB's errors have no number."""


class Generations:
    """Used from one thread. ``current`` is what is there; ``None`` before the first."""

    def __init__(self, directory: Path, name: str | None = None) -> None:
        """``name``: of the generation that an earlier process left; it is not used when it cannot be read."""
        self.directory = directory
        self.current: Replica | None = None
        if name is None or not (directory / name / "data.mdb").is_file():
            return
        try:
            self.current = Replica.open(directory / name)
        except (lmdb.Error, OSError) as error:
            log.warning("replica %s cannot be read (%s); building it anew", directory / name, error)

    def begin(self, map_bytes: int) -> Replica:
        """A new generation, empty; not current yet."""
        return Replica.open(self._new_folder(), map_bytes)

    def adopt(self, replica: Replica) -> None:
        """It is the current one now. Others may still read the one before, whose files go with :meth:`clear`."""
        self.current = replica

    def grow(self, replica: Replica) -> Replica:
        """A copy with a map of twice the size, which is the current one now."""
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
        """One that never became current."""
        replica.close()
        shutil.rmtree(replica.directory, ignore_errors=True)

    def clear(self) -> None:
        """Remove the folders of all but the current one."""
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
        """Raises ``StorageFull`` and ``EnvironmentProblem`` for what the disk says; ``UNREADABLE`` passes."""
        try:
            yield
        except UNREADABLE:
            raise
        except (lmdb.Error, OSError) as error:
            if isinstance(error, lmdb.DiskError) or getattr(error, "errno", None) in _FULL:
                raise StorageFull(
                    f"There is no space left for the replica {self.directory}: {error}. Look-ups go on with the epoch "
                    "that it is at; free some space, and it follows."
                ) from error
            if any(reason in str(error) for reason in _TOO_MANY_OPEN):
                raise EnvironmentProblem(
                    f"The replica {self.directory} cannot be opened: {error}. Look-ups go on with the epoch that it is "
                    "at. Each queryable table keeps two files open: raise the hard limit of open files of this process "
                    "(ulimit -Hn, LimitNOFILE of systemd), and start it again."
                ) from error
            raise EnvironmentProblem(
                f"The replica {self.directory} cannot be written: {error}. Look-ups go on with the epoch that it is "
                "at; let this user write there, and it follows."
            ) from error

    def _new_folder(self) -> Path:
        return self.directory / uuid4().hex[:16]
