"""The snapshot store: manifests, deltas and bases on any file system that fsspec supports."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

import fsspec
import pyarrow as pa

from epochal.background.task import BackgroundTask
from epochal.contracts.catalog import ManifestReference
from epochal.errors import FileCorrupt, FileMissing, SnapshotError, StorageFull
from epochal.snapshots import layout
from epochal.snapshots.local_files import Unequal, copy_whole, held_in_place, read_ranges, write_durably
from epochal.snapshots.manifest import FileReference, Manifest
from epochal.snapshots.remote_files import Data, RemoteFiles, remote_files

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_MANIFESTS_KEPT = 1024
_LONGEST_REASON = 500
_HASHED_BESIDE_BYTES = 1 << 20
_TRIES = 10
"""Minimum size of files whose checksum is computed in parallel with writing."""
Copy = Callable[[str, str | None], tuple[int, str]]
"""Copies a file (path, expected sha256 or ``None``). Returns its size and sha256. Raises ``FileMissing`` and
``FileCorrupt`` of the source, and errors of writing."""
_manifests: OrderedDict[str, Manifest] = OrderedDict()
_manifests_lock = Lock()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A listed file. ``written_at``: ``None`` if the file system does not have it."""

    path: str
    bytes: int
    written_at: datetime | None


class SnapshotStore:
    """Files by relative path. Every write is durable and atomic when it returns; a path is written once, never changed.

    ``url``: a local path or any fsspec URL. Serialisable; holds no connection. All methods raise ``SnapshotError`` or,
    where space ran out, ``StorageFull``, both naming the file.
    """

    def __init__(self, url: str) -> None:
        protocol, path = fsspec.core.split_protocol(url)
        self._root = Path(os.path.abspath(path)) if protocol in (None, "file", "local") else None
        self.url = str(self._root) if self._root is not None else url.rstrip("/")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SnapshotStore) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __repr__(self) -> str:
        return f"SnapshotStore({self.url!r})"

    @property
    def is_near(self) -> bool:
        """True for a local file system, with fast opens."""
        return self._root is not None

    def location(self, path: str) -> str:
        """The full path or URL of a file: what other readers (Spark, DuckDB) take."""
        return f"{self.url}/{path}"

    def write(self, path: str, data: Data) -> None:
        """Write a whole file."""
        with storage_errors(self.location(path)):
            if self._root is not None:
                self._write_near(self._root, path, memoryview(data).cast("B"))
            else:
                self._remote().write(path, data)

    def _write_near(self, root: Path, path: str, data: memoryview) -> None:
        for more in reversed(range(_TRIES)):
            try:
                with held_in_place(root, root / path, make=True) as held:
                    write_durably(held, data)
                return
            except FileNotFoundError:  # another process has removed the empty folder
                if not more:
                    raise

    def copy_some(self, source: SnapshotStore, copies: Callable[[Copy], None]) -> None:
        """Copy many files of another store. ``copies`` copies each file atomically, possibly from several threads; all
        files are durable when this returns."""
        if self._root is None or source._root is None:
            copies(lambda path, sha256: self._copy(source, path, sha256))
            return
        copies(lambda path, sha256: self._copy_near(source, path, sha256))
        os.sync()  # one sync instead of two per file

    def _copy(self, source: SnapshotStore, path: str, sha256: str | None) -> tuple[int, str]:
        data = source.read(path)
        found = hashlib.sha256(data).hexdigest()
        if sha256 not in (None, found):
            raise source._unequal(path)
        self.write(path, data)
        return len(data), found

    def _copy_near(self, source: SnapshotStore, path: str, sha256: str | None) -> tuple[int, str]:
        assert self._root is not None
        with (
            storage_errors(self.location(path)),
            source._opened(path) as descriptor,
            held_in_place(self._root, self._root / path, make=True, durable=False) as held,
        ):
            try:
                return copy_whole(descriptor, held, sha256)
            except Unequal:
                raise source._unequal(path) from None

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        assert self._root is not None
        try:
            descriptor = os.open(self._root / path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise self._missing(path, "the store") from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _unequal(self, path: str) -> FileCorrupt:
        return FileCorrupt(f"{self.location(path)} does not have the checksum recorded for it.")

    def write_file(self, path: str, data: Data, rows: int) -> FileReference:
        """Write a file that a manifest will name."""
        size = memoryview(data).nbytes
        digest = hashlib.sha256(data if size < _HASHED_BESIDE_BYTES else b"")
        hashing = (
            BackgroundTask("hashing", lambda: digest.update(data), raises=True)
            if size >= _HASHED_BESIDE_BYTES
            else None
        )
        try:
            self.write(path, data)
        finally:
            if hashing is not None:
                hashing.result()
        return FileReference(path=path, sha256=digest.hexdigest(), bytes=size, rows=rows)

    def read(self, path: str, of: str = "the store") -> bytes:
        """Bytes of a file, unchecked. ``of``: owner of the file, for messages. Raises ``FileMissing``."""
        try:
            if self._root is not None:
                return (self._root / path).read_bytes()
            return self._remote().read(path)
        except FileNotFoundError:
            raise self._missing(path, of) from None
        except OSError as error:
            raise SnapshotError(f"{self.location(path)}, of {of}, cannot be read: {error}.") from error

    def read_file(self, file: FileReference, of: str) -> bytes:
        """Bytes of a file, checked. ``of``: owner of the file, for messages. Raises ``FileMissing``,
        ``FileCorrupt``."""
        data = self.read(file.path, of)
        self._check(file.path, data, file.sha256, of)
        return data

    def read_ranges(self, file: FileReference, ranges: Sequence[tuple[int, int]], of: str) -> list[bytes]:
        """Parts of a file, unchecked: the bytes of each range (offset, size). Raises ``FileMissing``, and
        ``FileCorrupt`` if the file is shorter."""
        try:
            if self._root is not None:
                parts = read_ranges(self._root / file.path, ranges)
            else:
                parts = self._remote().read_ranges(file.path, ranges)
        except FileNotFoundError:
            raise self._missing(file.path, of) from None
        except OSError as error:
            raise SnapshotError(f"{self.location(file.path)}, of {of}, cannot be read: {error}.") from error
        if any(len(part) != size for part, (_, size) in zip(parts, ranges, strict=True)):
            raise self._of_another_size(file, of)
        return parts

    def open(self, file: FileReference, of: str) -> Any:
        """The file for reading in parts, its size checked: for Parquet, which has a checksum in each page."""
        if self.size(file.path, of) != file.bytes:
            raise self._of_another_size(file, of)
        if self._root is not None:
            return pa.OSFile(str(self._root / file.path))
        try:
            return self._remote().open(file.path)
        except OSError as error:
            raise SnapshotError(f"{self.location(file.path)}, of {of}, cannot be read: {error}.") from error

    def size(self, path: str, of: str = "the store") -> int:
        """Bytes of a file. Raises ``FileMissing``."""
        try:
            if self._root is not None:
                return (self._root / path).stat().st_size
            return self._remote().size(path)
        except FileNotFoundError:
            raise self._missing(path, of) from None
        except OSError as error:
            raise SnapshotError(f"{self.location(path)}, of {of}, cannot be read: {error}.") from error

    def delete(self, path: str) -> bool:
        """Remove a file; ``False`` when there was none."""
        try:
            with storage_errors(self.location(path)):
                if self._root is not None:
                    with held_in_place(self._root, self._root / path) as held:
                        held.unlink()
                else:
                    self._remote().delete(path)
        except FileMissing:
            return False
        return True

    def list(self, folder: str) -> list[str]:
        """Sorted paths of all files below a folder, including unfinished ones; empty for a missing folder.

        The owner file is left out.
        """
        if self._root is not None:
            found = [
                os.path.relpath(os.path.join(at, name), self._root)
                for at, _, names in os.walk(self._root / folder)
                for name in names
            ]
            return sorted(path for path in found if path != layout.OWNER)
        try:
            return sorted(path for path in self._remote().list(folder) if path != layout.OWNER)
        except OSError as error:
            raise SnapshotError(f"{self.location(folder)} cannot be listed: {error}.") from error

    def entries(self, folder: str = "") -> Sequence[StoredFile]:
        """Like :meth:`list`, with size and modification time. Files that are deleted meanwhile are left out."""
        if self._root is not None:
            found = [(path, _status(self._root / path)) for path in self.list(folder)]
            return [
                StoredFile(path, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
                for path, status in found
                if status is not None
            ]
        try:
            there = sorted(self._remote().entries(folder), key=lambda entry: entry[0])
        except OSError as error:
            raise SnapshotError(f"{self.location(folder)} cannot be listed: {error}.") from error
        return [StoredFile(path, size, _utc(written)) for path, size, written in there if path != layout.OWNER]

    def remove_empty_folder(self, folder: str) -> None:
        """Remove an empty folder, on file systems with folders."""
        if self._root is not None:
            with suppress(OSError):
                (self._root / folder).rmdir()
        else:
            self._remote().remove_empty_folder(folder)

    def write_manifest(self, manifest: Manifest) -> ManifestReference:
        """Write a manifest under a new name. The decision is made in the catalog, not here."""
        path, data = layout.manifest(manifest.key, manifest.attempt), manifest.encode()
        self.write(path, data)
        reference = ManifestReference(
            branch=manifest.branch, epoch=manifest.epoch, path=path, sha256=hashlib.sha256(data).hexdigest()
        )
        _remember(reference.sha256, manifest)
        return reference

    def read_manifest(self, reference: ManifestReference) -> Manifest:
        """The manifest of a reference, checked. Manifests are cached, since they never change."""
        with _manifests_lock:
            manifest = _manifests.get(reference.sha256)
        if manifest is None:
            of = f"snapshot {reference.key}"
            data = self.read(reference.path, of)
            self._check(reference.path, data, reference.sha256, of)
            try:
                manifest = Manifest.decode(data, self.location(reference.path))
            except ValueError as error:
                why = " ".join(str(error).split())[:_LONGEST_REASON]
                raise FileCorrupt(
                    f"{self.location(reference.path)}, of {of}, is not a valid manifest: {why}. "
                    "It was not written by a driver of Epochal. Continue from another snapshot."
                ) from error
            _remember(reference.sha256, manifest)
        if manifest.key != reference.key:
            raise FileCorrupt(
                f"{self.location(reference.path)} is the manifest of {manifest.key}, not of {reference.key}."
            )
        self.check_bounds(reference, manifest)
        return manifest

    def check_bounds(self, reference: ManifestReference, manifest: Manifest) -> None:
        """Raise ``FileCorrupt`` if a manifest names a file that it may not name. A plain store has no limits."""

    def _check(self, path: str, data: bytes, sha256: str, of: str) -> None:
        if hashlib.sha256(data).hexdigest() != sha256:
            raise FileCorrupt(
                f"{self.location(path)}, of {of}, does not have the checksum recorded for it (sha256 {sha256}). "
                "Restore the file from a copy, or start from a snapshot that does not need it."
            )

    def _of_another_size(self, file: FileReference, of: str) -> FileCorrupt:
        return FileCorrupt(
            f"{self.location(file.path)}, of {of}, does not have the {file.bytes} bytes that its manifest names."
        )

    def _missing(self, path: str, of: str) -> FileMissing:
        return FileMissing(
            f"{self.location(path)}, of {of}, is missing. Restore the file from a copy, or start from a snapshot that "
            "does not need it."
        )

    def _remote(self) -> RemoteFiles:
        return remote_files(self.url)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _utc(written: Any) -> datetime | None:
    """Modification time of fsspec: a time, or seconds since 1970."""
    if isinstance(written, datetime):
        return written.replace(tzinfo=UTC) if written.tzinfo is None else written.astimezone(UTC)
    return datetime.fromtimestamp(written, UTC) if isinstance(written, int | float) else None


@contextmanager
def storage_errors(location: str) -> Iterator[None]:
    """Translate the operating system's errors in the block, where ``location`` is being written."""
    try:
        yield
    except FileNotFoundError:
        raise FileMissing(f"{location} is missing.") from None
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(
                f"There is no space left for {location}. No data is lost: free some space; the epoch is retried."
            ) from error
        if error.errno in _CLOSED:
            raise SnapshotError(
                f"{location} cannot be written: {error.strerror}. Drivers and the control plane require write access: "
                "check credentials, permissions, and that the volume is not read-only."
            ) from error
        raise SnapshotError(f"{location} cannot be written: {error}.") from error


def remembered(sha256: str) -> Manifest | None:
    """Cached manifest with this checksum, or ``None``."""
    with _manifests_lock:
        return _manifests.get(sha256)


def _remember(sha256: str, manifest: Manifest) -> None:
    with _manifests_lock:
        _manifests[sha256] = manifest
        while len(_manifests) > _MANIFESTS_KEPT:
            _manifests.popitem(last=False)
