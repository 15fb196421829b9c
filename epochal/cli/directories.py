"""Directories of a command: created and checked before long work starts, and locked while in use."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from epochal.background.locks import lock_descriptor
from epochal.errors import Conflict, EnvironmentProblem

_LOCK = "run.lock"


def writable(directory: Path, option: str, mode: int = 0o777) -> Path:
    """Create a directory with ``mode`` if it is missing. Raises ``EnvironmentProblem`` if it is not writable."""
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise EnvironmentProblem(
            f"The directory {directory} is not writable: {error.strerror}. Choose another one with {option}, or give "
            "this user write permission."
        ) from error
    return directory


@contextmanager
def held(directory: Path, *, take_over: bool) -> Iterator[None]:
    """Lock the directory until the block or the process ends.

    Raises ``Conflict`` if another process has locked it. ``take_over`` replaces the lock; the caller must fence the
    other process.
    """
    path = directory / _LOCK
    descriptor = _lock_replaced(path) if take_over else _locked(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int:
    """Lock the current file at the path; a take-over replaces the file."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not lock_descriptor(descriptor):
            holder = _holder(descriptor)
            os.close(descriptor)
            raise Conflict(
                f"The directory {path.parent} is in use by another run{holder}. Wait until it ends, choose another "
                "--directory, or take it over with --take-over: the other run is then fenced and ends."
            )
        if _stands_at(descriptor, path):
            _sign(descriptor)
            return descriptor
        os.close(descriptor)


def _lock_replaced(path: Path) -> int:
    descriptor, name = tempfile.mkstemp(prefix=f".{_LOCK}-", dir=path.parent)
    lock_descriptor(descriptor)
    _sign(descriptor)
    os.replace(name, path)
    return descriptor


def _stands_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    signature = {"process": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
    os.pwrite(descriptor, json.dumps(signature).encode(), 0)


def _holder(descriptor: int) -> str:
    try:
        signature = json.loads(os.pread(descriptor, 1000, 0))
        return f" (process {signature['process']}, since {signature['since']})"
    except (ValueError, KeyError, TypeError):
        return ""  # the holder has not written its signature yet
