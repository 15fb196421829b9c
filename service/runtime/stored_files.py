"""Files of the store that the catalog lists individually: written, read, and deleted when they have expired."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, BinaryIO

from epochal.errors import EpochalError, FileMissing, SnapshotError, StoreUnavailable
from epochal.faults import declare
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.store_files import Kind, StoreFiles
from epochal.service.catalog.types import database_now
from epochal.snapshots import layout
from epochal.snapshots.manifest import FileReference
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger("epochal.retention")

INTENDED = declare("file.intended", "the catalog names a file that is not written yet")
WRITTEN = declare("file.written", "a file is written, and not used yet")
DELETED = declare("file.deleted", "a file is deleted, the catalog still names it")

_AT_ONCE = 100
_PIECE = 4 << 20
PART_BYTES = 32 << 20
"""Size of the parts of a bundle. One part is buffered in memory."""


class StoredParts:
    """Content that is stored in several consecutive files."""

    def __init__(self, store: SnapshotStore, of: str, files: Sequence[FileReference]) -> None:
        self._store = store
        self._of = of
        self._files = files
        self.bytes = sum(file.bytes for file in files)

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """Content from ``start`` up to, but not including, ``end``, in pieces of some MB. Raises ``SnapshotError``."""
        position = 0
        for file in self._files:
            first, last = max(start - position, 0), min(end - position, file.bytes)
            for offset in range(first, last, _PIECE):
                size = min(_PIECE, last - offset)
                yield self._store.read_ranges(file, [(offset, size)], self._of)[0]
            position += file.bytes


class PartedFile(io.RawIOBase, BinaryIO):
    """A new file that is written in consecutive parts; they expire unless :meth:`name` is called."""

    def __init__(self, files: StoredFiles, kind: Kind, owner: str, new_path: Callable[[int], str]) -> None:
        self._files = files
        self._kind: Kind = kind
        self._owner = owner
        self._new_path = new_path
        self._parts: list[tuple[str, int]] = []
        self._buffer = bytearray()
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Append to the file. Raises ``SnapshotError``, ``StorageFull``."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._buffer += view
        self.size += len(view)
        while len(self._buffer) >= PART_BYTES:
            self._write(PART_BYTES)
        return len(view)

    def finish(self) -> None:
        """Write the remaining bytes to the store. Raises the errors of :meth:`write`."""
        if self._buffer:
            self._write(len(self._buffer))

    def name(self, session: Session, kept: timedelta | None) -> None:
        """Assign the parts to their owner, for the period ``kept``. Raises ``Conflict`` if a part has expired."""
        files = StoreFiles(session)
        expires_at = None if kept is None else database_now(session) + kept
        for path, size in self._parts:
            files.name(path, size, expires_at)

    def _write(self, size: int) -> None:
        position = sum(size for _, size in self._parts)
        path = self._new_path(position)
        self._files.write(self._kind, self._owner, path, bytes(memoryview(self._buffer)[:size]), position)
        self._parts.append((path, size))
        del self._buffer[:size]


class StoredFiles:
    """Safe to use from several threads and processes."""

    def __init__(self, database: Database, store: SnapshotStore) -> None:
        self._database = database
        self._store = store

    def write(self, kind: Kind, owner: str, path: str, data: bytes, position: int = 0) -> None:
        """Write a new file. The transaction that uses it must name it (``StoreFiles.name``); otherwise the file is
        deleted later. Raises ``SnapshotError``, ``StorageFull``; the file is then deleted."""
        with self._database.writing() as session:
            StoreFiles(session).intend(kind, owner, path, position)
        INTENDED.hit()
        try:
            self._store.write(path, data)
        except StoreUnavailable:
            with suppress(EpochalError), self._database.writing() as session:
                StoreFiles(session).give_up(path)  # deleted when the store answers
            raise
        except Exception:
            with suppress(EpochalError):
                self.delete(path)
            raise
        WRITTEN.hit()

    def read(self, path: str, of: str) -> bytes:
        """The bytes, unchecked. Raises ``FileMissing``, ``SnapshotError``, with the text ``of`` that describes the
        file's owner."""
        return self._store.read(path, of)

    def parts(self, kind: Kind, owner: str) -> StoredParts:
        """The owner's files that are named and have not expired."""
        with self._database.reading() as session:
            rows = StoreFiles(session).of(kind, owner)
        return StoredParts(
            self._store, owner, [FileReference(path=row.path, sha256="", bytes=row.bytes or 0, rows=0) for row in rows]
        )

    def is_there(self, path: str, size: int) -> bool:
        """``True`` if the store holds the file with this size. Raises ``SnapshotError``, ``StoreUnavailable``."""
        try:
            return self._store.size(path) == size
        except FileMissing:
            return False

    def delete(self, path: str) -> None:
        """Delete immediately a file that is no longer read. Raises ``SnapshotError``; the file is then deleted
        later."""
        with self._database.writing() as session:
            StoreFiles(session).give_up(path)
        self._delete([path])

    def delete_all(self, kind: Kind, owner: str) -> None:
        """Delete all files of the owner, named or not. Raises ``SnapshotError``; they are then deleted later."""
        with self._database.writing() as session:
            StoreFiles(session).give_up_all(kind, owner)
            paths = StoreFiles(session).all_of(kind, owner)
        self._delete(paths)

    def sweep(self) -> None:
        """Delete expired files. Files that cannot be deleted now are left for the next call."""
        while True:
            with self._database.reading() as session:
                paths = StoreFiles(session).expired(_AT_ONCE)
            try:
                self._delete(paths)
            except SnapshotError as error:
                log.warning("files have expired and cannot be deleted: %s", error)
                return
            if len(paths) < _AT_ONCE:
                return

    def _delete(self, paths: Sequence[str]) -> None:
        """Delete files, and partial files that killed processes have left in their folders."""
        expired = set(paths)
        for folder in sorted({path.rpartition("/")[0] for path in paths}):
            for file in self._store.list(folder):
                if layout.finished(file) in expired:
                    self._store.delete(file)
            self._store.remove_empty_folder(folder)
        if expired:
            DELETED.hit()
            with self._database.writing() as session:
                StoreFiles(session).forget(expired)
