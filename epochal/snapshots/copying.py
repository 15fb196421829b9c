"""Copying of files between stores, several at the same time, with checksums."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from epochal.errors import FileCorrupt, FileMissing
from epochal.faults import FaultPoint
from epochal.snapshots.backup_format import BackupFile
from epochal.snapshots.local_files import Unequal, copy_whole, held_in_place
from epochal.snapshots.references import NeededFile, NeededPart
from epochal.snapshots.storage_errors import storage_errors
from epochal.snapshots.store import SnapshotStore

THREADS = 4
"""Number of threads; some wait for disks or networks while others compute checksums."""

Result = TypeVar("Result")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ToCopy:
    """A file to copy. ``sha256``, ``bytes``: if known. ``parts``: needed parts of a pack. ``may_vanish``: its owner may
    delete it at any time, and it is then no longer needed."""

    path: str
    sha256: str | None = None
    bytes: int | None = None
    may_vanish: bool = False
    parts: tuple[NeededPart, ...] = ()

    @classmethod
    def of(cls, file: NeededFile) -> ToCopy:
        return cls(file.path, file.sha256, file.bytes, parts=file.parts)


@dataclass(frozen=True)
class Copied:
    """Result of copying. ``files``: all files in the target. ``problems``: files that could not be copied."""

    files: tuple[BackupFile, ...]
    problems: tuple[str, ...]
    copied: int
    copied_bytes: int


@dataclass(frozen=True)
class _One:
    file: BackupFile | None
    problem: str | None = None


def copy_all(
    source: SnapshotStore,
    target: SnapshotStore,
    files: Iterable[ToCopy],
    known: Mapping[str, BackupFile],
    progress: Callable[[str], None],
    point: FaultPoint,
) -> Copied:
    """Copy files that the target does not have according to ``known``.

    A file that is missing or damaged in the source is reported as a problem, and copying continues. Raises errors of
    writing to the target, and of ``progress``, which is called often.
    """

    done: list[BackupFile] = []
    problems: list[str] = []
    missing: list[ToCopy] = []
    for file in files:
        existing = known.get(file.path)
        if existing is not None and file.sha256 in (None, existing.sha256) and file.bytes in (None, existing.bytes):
            done.append(existing)
        else:
            missing.append(file)
    kept = len(done)

    def copy_missing(copy: _Copy) -> None:
        copied_bytes = 0
        for one in in_parallel(missing, lambda file: _copied(file, copy)):
            if one.problem is not None:
                problems.append(one.problem)
            if one.file is not None:
                done.append(one.file)
                copied_bytes += one.file.bytes
                point.hit()
            progress(f"{len(done) - kept} of {len(missing)} files copied, {copied_bytes / 1e6:.0f} MB")

    if missing:
        _copy_some(source, target, copy_missing)
    copied = done[kept:]
    return Copied(tuple(sorted(done)), tuple(problems), len(copied), sum(file.bytes for file in copied))


_Copy = Callable[[ToCopy], tuple[int, str]]
"""Copies a file. Returns its size and sha256. Raises ``FileMissing`` and ``FileCorrupt`` of the source, and errors of
writing."""


def _copy_some(source: SnapshotStore, target: SnapshotStore, copies: Callable[[_Copy], None]) -> None:
    """Copy many files. ``copies`` copies each file atomically, possibly from several threads; all files are durable
    when this returns."""
    source_folder, folder = source.folder, target.folder
    if folder is None or source_folder is None:
        copies(lambda file: _copy(source, target, file))
        return
    copies(lambda file: _copy(source, target, file) if file.parts else _copy_near(source, folder, file))
    os.sync()  # one sync instead of two per file


def _copy(source: SnapshotStore, target: SnapshotStore, file: ToCopy) -> tuple[int, str]:
    data = source.read(file.path)
    found = hashlib.sha256(data).hexdigest()
    if file.sha256 not in (None, found) or not all(part.is_in(data) for part in file.parts):
        raise _unequal(source, file.path)
    target.write(file.path, data)
    return len(data), found


def _copy_near(source: SnapshotStore, folder: Path, file: ToCopy) -> tuple[int, str]:
    with (
        storage_errors(str(folder / file.path)),
        _opened(source, file.path) as descriptor,
        held_in_place(folder, folder / file.path, make=True, durable=False) as held,
    ):
        try:
            return copy_whole(descriptor, held, file.sha256)
        except Unequal:
            raise _unequal(source, file.path) from None


@contextmanager
def _opened(source: SnapshotStore, path: str) -> Iterator[int]:
    try:
        descriptor = os.open(source.location(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileMissing(f"{source.location(path)} is missing. Restore the file from a copy.") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _unequal(source: SnapshotStore, path: str) -> FileCorrupt:
    return FileCorrupt(f"{source.location(path)} does not have the checksum recorded for it.")


def _copied(file: ToCopy, copy: _Copy) -> _One:
    try:
        size, sha256 = copy(file)
    except FileMissing as error:
        return _One(None, None if file.may_vanish else error.message)
    except FileCorrupt as error:
        return _One(None, error.message)
    return _One(BackupFile(file.path, size, sha256))


def check_all(
    store: SnapshotStore,
    sizes: Mapping[str, int],
    files: Sequence[BackupFile],
    quick: bool,
    progress: Callable[[str], None],
) -> Iterator[tuple[BackupFile, str]]:
    """Missing or damaged files, with the problem. ``sizes``: sizes of existing files. ``quick``: compare only sizes."""

    def check(file: BackupFile) -> str | None:
        if file.path not in sizes:
            return "it is missing"
        if sizes[file.path] != file.bytes:
            return f"it has {sizes[file.path]} bytes instead of {file.bytes}"
        if quick:
            return None
        try:
            data = store.read(file.path)
        except FileMissing:
            return "it is missing"
        return None if hashlib.sha256(data).hexdigest() == file.sha256 else "it has another checksum"

    for number, (file, problem) in enumerate(zip(files, in_parallel(files, check), strict=True)):
        if problem is not None:
            yield file, problem
        progress(f"{number + 1} of {len(files)} files checked")


def in_parallel(items: Iterable[Item], work: Callable[[Item], Result]) -> Iterator[Result]:
    """Results in the order of the items. Few items are started ahead, so that memory holds few files."""
    with _pool() as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """A thread pool. At the end of the block, also by an exception, pending work is cancelled."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="copy")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
