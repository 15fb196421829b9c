"""Claim on the folder of the replicas.

A folder belongs to one process and to one boot of the machine: replicas are written without sync, so their content is
undefined after a reboot.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

from epochal.background.locks import FileLock
from epochal.errors import EnvironmentProblem
from epochal.service.runtime.machine import this_machine

_OWNER_ONLY = 0o700


class ClaimedFolder:
    """A folder claimed by this process.

    The claim lasts until :meth:`release`, or until this process and all processes that inherit ``descriptor`` have
    ended.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def release(self) -> None:
        os.close(self.descriptor)


def claim(directory: Path) -> ClaimedFolder:
    """Claim the first folder of this boot that no other process holds, and delete unused folders.

    Content that an earlier process left in the claimed folder is preserved. Raises ``EnvironmentProblem``.
    """
    try:
        return _claim(directory)
    except OSError as error:
        raise EnvironmentProblem(
            f"Replicas cannot be stored in {directory}: {error.strerror}. Grant this user write access, or choose "
            "another data directory with --home."
        ) from error


def _claim(directory: Path) -> ClaimedFolder:
    directory.mkdir(parents=True, exist_ok=True, mode=_OWNER_ONLY)
    boot = _boot()
    found = next(filter(None, (_try(directory / f"{boot}.{number}") for number in count(1))))
    found.path.mkdir(exist_ok=True, mode=_OWNER_ONLY)
    for other in directory.iterdir():
        if other != found.path and other.is_dir():
            _remove_unused(other, of_this_boot=other.name.startswith(f"{boot}."))
    return found


def _try(path: Path) -> ClaimedFolder | None:
    descriptor = _lock(_lock_file(path))
    return None if descriptor is None else ClaimedFolder(path, descriptor)


def _boot() -> str:
    # Without the container's part: written pages belong to the kernel and survive a restart of the container.
    start, _, _ = this_machine().boot.partition("+")
    return re.sub(r"[^A-Za-z0-9-]", "-", start)


def _lock_file(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _lock(file: Path) -> int | None:
    lock = FileLock.acquire(file)
    return None if lock is None else lock.descriptor


def _remove_unused(folder: Path, of_this_boot: bool) -> None:
    """Delete a folder whose lock is free. Other machines on the same volume and other processes lock folders in use."""
    descriptor = _lock(_lock_file(folder))
    if descriptor is None:
        return
    try:
        shutil.rmtree(folder, ignore_errors=True)
        if not of_this_boot:
            # Other processes may claim folders of this boot: keep the lock file, so that all lock the same file.
            with suppress(FileNotFoundError):
                _lock_file(folder).unlink()
    finally:
        os.close(descriptor)
