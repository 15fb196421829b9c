"""The snapshot store: manifests, deltas and bases on a local file system, in an object store, or on HDFS."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa

from epochal.background.task import BackgroundTask
from epochal.contracts.catalog import ManifestReference
from epochal.errors import FileCorrupt, FileMissing, SnapshotError
from epochal.snapshots import layout, object_store, read_counts
from epochal.snapshots.fsspec_files import fsspec_files
from epochal.snapshots.immutable_cache import SizedCache
from epochal.snapshots.local_files import held_in_place, read_ranges, write_durably
from epochal.snapshots.manifest import FileReference, Manifest
from epochal.snapshots.packs import Pack
from epochal.snapshots.remote_files import Data, RemoteFile, RemoteFiles
from epochal.snapshots.storage_errors import storage_errors, store_errors
from epochal.store_variables import is_object_store

_MANIFESTS_KEPT = 1024
_LONGEST_REASON = 500
_HASHED_BESIDE_BYTES = 1 << 20
"""Minimum size of files whose checksum is computed in parallel with writing."""
_TRIES = 10
_PACKS_BYTES = 32 << 20
_READ_WHOLE_BYTES = 256 << 10
"""Maximum size of the files of a pack that are read together with the manifest: one request serves its readers."""
_manifests: SizedCache[Manifest] = SizedCache(_MANIFESTS_KEPT)
_packs: SizedCache[bytes] = SizedCache(_PACKS_BYTES)
"""Files of packs of remote stores, by location."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A listed file. ``written_at``: ``None`` if the file system does not have it."""

    path: str
    bytes: int
    written_at: datetime | None


class SnapshotStore:
    """Files by relative path. Every write is durable and atomic when it returns; a path is written once, never changed.

    ``url``: a local path, the URL of an object store (``s3://``, ``gs://``, ``az://``, ``abfss://``), or any other URL
    of fsspec. Serialisable; holds no connection. All methods raise ``SnapshotError`` or, where space ran out,
    ``StorageFull``, both naming the file; ``StoreUnavailable`` when a remote store does not answer or refuses
    requests.
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

    @property
    def folder(self) -> Path | None:
        """The folder of a local store."""
        return self._root

    @property
    def real_folder(self) -> Path | None:
        """The folder of a local store, without symbolic links."""
        return None if self._root is None else self._root.resolve()

    def location(self, path: str) -> str:
        """The full path or URL of a file: what other readers (Spark, DuckDB) take."""
        return f"{self.url}/{path}"

    def write(self, path: str, data: Data) -> None:
        """Write a whole file."""
        if self._root is not None:
            with storage_errors(self.location(path)):
                self._write_near(self._root, path, memoryview(data).cast("B"))
        else:
            with self._remote(path, "written") as files:
                files.write(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file unless it exists. Returns ``False``, without an effect, if it exists with other bytes.

        Exactly one of several concurrent calls with different bytes succeeds in an object store with conditional
        writes; elsewhere a call that runs at the same time may overwrite the file.
        """
        if self._root is not None:
            if (self._root / path).exists():
                return self.read(path) == data
            self.write(path, data)
            return True
        with self._remote(path, "written") as files:
            try:
                files.create(path, data)
            except FileExistsError:  # an attempt of this call whose answer was lost may have written it
                return files.read(path) == data
        return True

    def _write_near(self, root: Path, path: str, data: memoryview) -> None:
        for more in reversed(range(_TRIES)):
            try:
                with held_in_place(root, root / path, make=True) as held:
                    write_durably(held, data)
                return
            except FileNotFoundError:  # another process has removed the empty folder
                if not more:
                    raise

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
        with self._reading(path, of):
            if self._root is not None:
                data = (self._root / path).read_bytes()
            else:
                with self._remote(path, "read") as files:
                    data = files.read(path)
        read_counts.count("store", len(data))
        return data

    def read_file(self, file: FileReference, of: str) -> bytes:
        """Bytes of a file, checked. ``of``: owner of the file, for messages. Raises ``FileMissing``,
        ``FileCorrupt``."""
        data = self.bytes_of(file, of)
        self._check(self.place_of(file), data, file.sha256, of)
        return data

    def bytes_of(self, file: FileReference, of: str) -> bytes:
        """Like :meth:`read_file`, unchecked."""
        return self.read(file.path, of) if file.within is None else self.read_ranges(file, [(0, file.bytes)], of)[0]

    def read_ranges(self, file: FileReference, ranges: Sequence[tuple[int, int]], of: str) -> list[bytes]:
        """Parts of a file, unchecked: the bytes of each range (offset, size). Raises ``FileMissing``, and
        ``FileCorrupt`` if the file is shorter."""
        path, first = file.stored_in, 0 if file.within is None else file.within.offset
        shifted = [(first + offset, size) for offset, size in ranges]
        pack = None if file.within is None else _packs.get(self.location(path))
        if pack is not None:
            parts = [pack[offset : offset + size] for offset, size in shifted]
        else:
            with self._reading(path, of):
                if self._root is not None:
                    parts = read_ranges(self._root / path, shifted)
                else:
                    with self._remote(path, "read") as files:
                        parts = files.read_ranges(path, shifted)
            read_counts.count("store", sum(map(len, parts)))
        if any(len(part) != size for part, (_, size) in zip(parts, ranges, strict=True)):
            raise self._of_another_size(file, of)
        return parts

    def place_of(self, file: FileReference) -> str:
        """The location of a file, for messages; for a small file also that of its pack."""
        return self.location(file.path) + ("" if file.within is None else f" in {self.location(file.within.path)}")

    def open(self, file: FileReference, of: str) -> Any:
        """The file for reading in parts, its size checked: for Parquet, which has a checksum in each page."""
        if file.within is not None:
            return pa.BufferReader(self.bytes_of(file, of))
        if self.size(file.path, of) != file.bytes:
            raise self._of_another_size(file, of)
        with self._reading(file.path, of):
            if self._root is not None:
                return pa.OSFile(str(self._root / file.path))
            with self._remote(file.path, "read") as files:
                source = files.open(file.path, file.bytes)
        return RemoteFile(source, lambda: self._reading_part(file.path, of))

    @contextmanager
    def _reading_part(self, path: str, of: str) -> Iterator[None]:
        with self._reading(path, of), store_errors(self.url, self.location(path), "read"):
            yield

    def size(self, path: str, of: str = "the store") -> int:
        """Bytes of a file. Raises ``FileMissing``."""
        with self._reading(path, of):
            if self._root is not None:
                return (self._root / path).stat().st_size
            with self._remote(path, "read") as files:
                return files.size(path)

    def delete(self, path: str) -> bool:
        """Remove a file. ``False`` when there was none, where the store reports it: S3 does not."""
        if self._root is None:
            with suppress(FileNotFoundError), self._remote(path, "deleted") as files:
                files.delete(path)
                return True
            return False
        try:
            with storage_errors(self.location(path)), held_in_place(self._root, self._root / path) as held:
                held.unlink()
        except FileMissing:
            return False
        return True

    def list(self, folder: str) -> list[str]:
        """Sorted paths of all files below a folder, including unfinished ones; empty for a missing folder.

        The owner file is left out.
        """
        if self._root is not None:
            with storage_errors(self.location(folder)):
                found = [
                    os.path.relpath(os.path.join(at, name), self._root)
                    for at, _, names in os.walk(self._root / folder, onerror=_unless_missing)
                    for name in names
                ]
            return sorted(path for path in found if path != layout.OWNER)
        with self._remote(folder, "listed") as files:
            return sorted(path for path in files.list(folder) if path != layout.OWNER)

    def entries(self, folder: str = "") -> Sequence[StoredFile]:
        """Like :meth:`list`, with size and modification time. Files that are deleted meanwhile are left out."""
        if self._root is not None:
            found = [(path, _status(self._root / path)) for path in self.list(folder)]
            return [
                StoredFile(path, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
                for path, status in found
                if status is not None
            ]
        with self._remote(folder, "listed") as files:
            there = sorted(files.entries(folder), key=lambda entry: entry[0])
        return [StoredFile(path, size, _utc(written)) for path, size, written in there if path != layout.OWNER]

    def probe(self) -> None:
        """One short request, which reads. Raises ``StoreUnavailable`` if a remote store does not answer or refuses."""
        if self._root is None:
            with store_errors(self.url, self.url, "read"), suppress(FileNotFoundError):
                _remote_files(self.url).probe(layout.OWNER)

    def remove_empty_folder(self, folder: str) -> None:
        """Remove an empty folder, on file systems with folders."""
        if self._root is not None:
            with suppress(OSError):
                (self._root / folder).rmdir()
        else:
            with self._remote(folder, "deleted") as files:
                files.remove_empty_folder(folder)

    def write_manifest(self, manifest: Manifest, pack: Pack | None = None) -> ManifestReference:
        """Write a manifest under a new name, or together with the files of a pack. The decision is made in the catalog,
        not here."""
        path, data = layout.manifest(manifest.key, manifest.attempt), manifest.encode()
        if pack is None:
            self.write(path, data)
        else:
            path, beginning = pack.path, pack.beginning
            self.write(path, beginning + data)
            self._remember_pack(path, beginning)
        reference = ManifestReference(
            branch=manifest.branch, epoch=manifest.epoch, path=path, sha256=hashlib.sha256(data).hexdigest()
        )
        _remember(reference.sha256, manifest)
        return reference

    def read_manifest(self, reference: ManifestReference) -> Manifest:
        """The manifest of a reference, checked. Manifests are cached, since they never change."""
        manifest = _manifests.get(reference.sha256)
        if manifest is None:
            of = f"snapshot {reference.key}"
            data = self.manifest_bytes(reference.path, of)
            self._check(self.location(reference.path), data, reference.sha256, of)
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

    def manifest_bytes(self, path: str, of: str = "the store") -> bytes:
        """Bytes of a manifest, unchecked; empty if its file is a pack without a manifest. Raises ``FileMissing``."""
        offset = layout.manifest_offset(path)
        if self._root is not None or offset <= _READ_WHOLE_BYTES:
            data = self.read(path, of)
            self._remember_pack(path, data[:offset])
            return data[offset:]
        with self._reading(path, of), self._remote(path, "read") as files:
            return files.read_from(path, offset)

    def _remember_pack(self, path: str, beginning: bytes) -> None:
        if self._root is None and beginning:
            _packs.put(self.location(path), beginning, len(beginning))

    def check_bounds(self, reference: ManifestReference, manifest: Manifest) -> None:
        """Raise ``FileCorrupt`` if a manifest names a file that it may not name. A plain store has no limits."""

    def _check(self, location: str, data: bytes, sha256: str, of: str) -> None:
        if hashlib.sha256(data).hexdigest() != sha256:
            raise FileCorrupt(
                f"{location}, of {of}, does not have the checksum recorded for it (sha256 {sha256}). "
                "Restore the file from a copy, or start from a snapshot that does not need it."
            )

    def _of_another_size(self, file: FileReference, of: str) -> FileCorrupt:
        return FileCorrupt(
            f"{self.place_of(file)}, of {of}, does not have the {file.bytes} bytes that its manifest names."
        )

    def _missing(self, path: str, of: str) -> FileMissing:
        return FileMissing(
            f"{self.location(path)}, of {of}, is missing. Restore the file from a copy, or start from a snapshot that "
            "does not need it."
        )

    @contextmanager
    def _reading(self, path: str, of: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise self._missing(path, of) from None
        except OSError as error:
            raise SnapshotError(f"{self.location(path)}, of {of}, cannot be read: {error}.") from error

    @contextmanager
    def _remote(self, path: str, doing: str) -> Iterator[RemoteFiles]:
        """Files of a remote store, in which ``path`` is ``doing``: written, deleted, read or listed."""
        with store_errors(self.url, self.location(path), doing):
            yield _remote_files(self.url)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _unless_missing(error: OSError) -> None:
    """Ignore missing folders; raise other errors, which must not look like an empty folder."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _utc(written: Any) -> datetime | None:
    """Modification time of fsspec: a time, or seconds since 1970."""
    if isinstance(written, datetime):
        return written.replace(tzinfo=UTC) if written.tzinfo is None else written.astimezone(UTC)
    return datetime.fromtimestamp(written, UTC) if isinstance(written, int | float) else None


def _remote_files(url: str) -> RemoteFiles:
    return object_store.object_store_files(url) if is_object_store(url) else fsspec_files(url)


def remembered(sha256: str) -> Manifest | None:
    """Cached manifest with this checksum, or ``None``."""
    return _manifests.get(sha256)


def _remember(sha256: str, manifest: Manifest) -> None:
    _manifests.put(sha256, manifest, 1)
