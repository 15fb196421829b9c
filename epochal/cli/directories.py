"""Directories that a command keeps things in: made and tried before anything that takes long is started, and held."""

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
    """The directory, made with ``mode`` where it is not there. Raises ``EnvironmentProblem`` when nothing can be
    written to it."""
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise EnvironmentProblem(
            f"The directory {directory} cannot be written: {error.strerror}. Choose another with {option}, or let "
            "this user write it."
        ) from error
    return directory


@contextmanager
def held(directory: Path, *, take_over: bool) -> Iterator[None]:
    """The directory is this process's until the block, or the process, ends.

    Raises ``Conflict`` when another process has it; with ``take_over`` that one loses it, and is to be fenced.
    """
    path = directory / _LOCK
    descriptor = _locked_anew(path) if take_over else _locked(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int:
    """The file's lock, of the file that stands there: who takes over puts another in its place."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not lock_descriptor(descriptor):
            holder = _holder(descriptor)
            os.close(descriptor)
            raise Conflict(
                f"Another run{holder} has the directory {path.parent}. Wait for it to end, choose another --directory, "
                "or take it over with --take-over: the other run is then fenced, and ends."
            )
        if _stands_at(descriptor, path):
            _sign(descriptor)
            return descriptor
        os.close(descriptor)


def _locked_anew(path: Path) -> int:
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
        return ""  # it has taken the lock a moment ago
