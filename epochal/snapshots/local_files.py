"""Durable atomic writes and ranged reads on a local file system: temporary name, fsync, rename, fsync of the folder.

Files and folders that root creates get the owner of the enclosing folder: the control plane may run as root, and
drivers, which own the store, must be able to write into folders that it creates.
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
"""Writes of a megabyte take the kernel twice the time per byte (measured on Linux 6.18, ext4)."""
_LARGE_BYTES = 1 << 20
_own = local()
"""Copy buffer of each thread. A new buffer for each file would cost zeroing its pages."""


def write_durably(path: Path, data: memoryview) -> None:
    """Write a file atomically and durably: it survives a power failure when this returns."""
    write_whole(path, data, durable=True)
    sync_folder(path.parent)


def write_whole(path: Path, data: memoryview, durable: bool = False) -> None:
    """Write a file atomically; without ``durable`` it may be lost in a power failure."""
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
    """Copy the open file ``source`` as :func:`write_whole` does. Returns its size and the sha256 of the written bytes.
    Raises ``Unequal`` if the sha256 is not ``expected``; then no file is created.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}{TEMPORARY}")
    try:
        with _created(temporary, durable=False) as descriptor:
            size, sha256 = _copied(source, descriptor)
            if size >= _LARGE_BYTES and hasattr(os, "posix_fadvise"):
                # Linux starts writing immediately, so that a later sync has little left to wait for.
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
    """Copy in pieces that fit in the processor's cache."""
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
    """Bytes of each range (offset, size); fewer if the file ends earlier."""
    with path.open("rb", buffering=0) as file:
        return [_read_range(file.fileno(), offset, size) for offset, size in ranges]


def _read_range(descriptor: int, offset: int, size: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more  # one call reads at most 2 GiB
    return data


class Unequal(Exception):
    """A file does not have the expected checksum."""


def sync_folder(folder: Path) -> None:
    """Sync a folder, which makes its names durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, durable: bool = True) -> None:
    """Create a folder and its parents."""
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
    """A path through the open folder of ``path``, safe for root to write or delete below ``root``.

    The store's owner runs authors' code and could create a symbolic link that redirects root to another folder.
    ``make``: create a missing folder, durably or not. Raises ``OSError``.
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
            raise OSError(errno.ELOOP, "its path contains a symbolic link, which is not allowed in stores")
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
