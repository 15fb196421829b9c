"""Durable atomic writes and ranged reads on a local file system: temporary name, fsync, rename, fsync of the folder.

What root writes belongs to the owner of the folder that it is written into: the control plane may be root while
drivers, who own the store, are not, and have to write into folders that the control plane has made.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import local
from uuid import uuid4

from epochal.snapshots.layout import TEMPORARY

_PIECE_BYTES = 1 << 18
"""Writes of a whole megabyte take the kernel twice the time for each byte (measured: Linux 6.18, ext4)."""
_LARGE_BYTES = 1 << 20
_own = local()
"""Of each thread that copies: its buffer. A new one for each file would have the system clear its pages again."""


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


def copy_whole(source: int, path: Path, expected: str | None) -> tuple[int, str]:
    """The file that is open as ``source``, as :func:`write_whole` writes one; its bytes, and the sha256 of what was
    written. Raises ``Unequal`` when that is not ``expected``; then the file is not there.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}{TEMPORARY}")
    try:
        with _created(temporary, durable=False) as descriptor:
            size, sha256 = _copied(source, descriptor)
            if size >= _LARGE_BYTES and hasattr(os, "posix_fadvise"):
                # Linux begins to write at once, and whoever syncs later finds little left to wait for.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if expected is not None and sha256 != expected:
            raise Unequal(sha256)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return size, sha256


def _copied(source: int, target: int) -> tuple[int, str]:
    """In pieces that the processor's cache holds: neither hashing nor writing waits for memory."""
    buffer = getattr(_own, "buffer", None)
    if buffer is None:
        buffer = _own.buffer = memoryview(bytearray(_PIECE_BYTES))
    digest, size = hashlib.sha256(), 0
    while count := os.readv(source, [buffer]):
        piece = buffer[:count]
        digest.update(piece)
        while piece:
            piece = piece[os.write(target, piece) :]
        size += count
    return size, digest.hexdigest()


def read_ranges(path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """For each range, an offset and a number of bytes, its bytes; fewer where the file ends before."""
    with path.open("rb", buffering=0) as file:
        return [_read_range(file.fileno(), offset, size) for offset, size in ranges]


def _read_range(descriptor: int, offset: int, size: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more  # one call reads at most 2 GiB
    return data


class Unequal(Exception):
    """A file does not have the checksum that is expected of it."""


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, durable: bool = True) -> None:
    """Make a folder and those above it."""
    if folder.is_dir():
        return
    make_folder(folder.parent, durable)
    with suppress(FileExistsError):
        folder.mkdir()
        if os.geteuid() == 0:
            owner = folder.parent.stat()
            os.chown(folder, owner.st_uid, owner.st_gid, follow_symlinks=False)
    if durable:
        sync_folder(folder.parent)


@contextmanager
def held_in_place(root: Path, path: Path, make: bool = False, durable: bool = True) -> Iterator[Path]:
    """``path`` below ``root``, for root to write to or to remove: by way of its folder, which is held open.

    The store's owner runs authors' code, and could put a link in the way, to have root write or delete elsewhere.
    ``make`` the folder, when it is not there, durably or not. Raises ``OSError``.
    """
    if os.geteuid() != 0 or sys.platform != "linux":
        yield path
        return
    if make:
        make_folder(path.parent, durable)
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
def _created(path: Path, durable: bool = True) -> Iterator[int]:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    try:
        descriptor = os.open(path, flags, 0o644)
    except FileNotFoundError:
        make_folder(path.parent, durable)
        descriptor = os.open(path, flags, 0o644)
    try:
        if os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        yield descriptor
    finally:
        os.close(descriptor)
