"""Durable atomic writes and ranged reads on a local file system: temporary name, fsync, rename, fsync of the folder.

What root writes belongs to the owner of the folder that it is written into: the control plane may be root while
drivers, who own the store, are not, and have to write into folders that the control plane has made.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from epochal.snapshots.layout import TEMPORARY


def write_durably(path: Path, data: memoryview) -> None:
    """After this returns the file is there, whole, also after a power cut; before, it is not there at all."""
    write_whole(path, data, durable=True)
    sync_folder(path.parent)


def write_whole(path: Path, data: memoryview, durable: bool = False) -> None:
    """After this returns the file is there, whole, as long as the machine runs; before, it is not there at all."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}{TEMPORARY}")
    try:
        with _created(temporary) as descriptor:
            while data:
                data = data[os.write(descriptor, data) :]
            if durable:
                os.fsync(descriptor)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def read_ranges(path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """For each range, an offset and a number of bytes, its bytes; fewer where the file ends before."""
    with path.open("rb", buffering=0) as file:
        return [_read_range(file.fileno(), offset, size) for offset, size in ranges]


def _read_range(descriptor: int, offset: int, size: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more  # one call reads at most 2 GiB
    return data


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
        if os.geteuid() == 0:
            owner = folder.parent.stat()
            os.chown(folder, owner.st_uid, owner.st_gid, follow_symlinks=False)
    sync_folder(folder.parent)


@contextmanager
def held_in_place(root: Path, path: Path, make: bool = False) -> Iterator[Path]:
    """``path`` below ``root``, for root to write to or to remove: by way of its folder, which is held open.

    The store's owner runs authors' code, and could put a link in the way, to have root write or delete elsewhere.
    ``make`` the folder, when it is not there. Raises ``OSError``.
    """
    if os.geteuid() != 0 or sys.platform != "linux":
        yield path
        return
    if make:
        make_folder(path.parent)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        opened = f"/proc/self/fd/{descriptor}"
        expected = os.path.normpath(os.path.join(os.path.realpath(root), path.parent.relative_to(root)))
        if os.readlink(opened) != expected:
            raise OSError(errno.ELOOP, "there is a symbolic link on the way to it, which stores do not have")
        yield Path(opened) / path.name
    finally:
        os.close(descriptor)


@contextmanager
def _created(path: Path) -> Iterator[int]:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    try:
        descriptor = os.open(path, flags, 0o644)
    except FileNotFoundError:
        make_folder(path.parent)
        descriptor = os.open(path, flags, 0o644)
    try:
        if os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        yield descriptor
    finally:
        os.close(descriptor)
