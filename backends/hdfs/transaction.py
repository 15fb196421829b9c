"""Transaction of one task attempt of the HDFS sink, and its handle."""

from __future__ import annotations

import hashlib
import io
import posixpath
import queue
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import pyarrow as pa

from epochal.backends.epoch_folders import StagedFile, new_names
from epochal.backends.file_formats import WRITERS, Writer
from epochal.backends.hdfs.client import ANSWERS, WebHdfs, translated
from epochal.background.task import BackgroundTask
from epochal.contracts.backend import SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import SinkError
from epochal.faults import declare

FILE_SENT = declare("T3.hdfs.sent", "the server has confirmed the upload; the file's length is not verified yet")
FILE_CHECKED = declare("T3.hdfs.checked", "the staged file is complete")


@dataclass(frozen=True)
class HdfsFile(StagedFile):
    """A staged file with its id, which no rename changes."""

    file_id: int


def hdfs_files(handles: Sequence[Handle]) -> list[HdfsFile]:
    """The files that the handles name."""
    found = []
    for handle in handles:
        file = StagedFile.of(handle)
        if file is not None:
            named = HdfsFile(file.staged, file.final, file.length, file.sha256, int(handle.payload["file_id"]))
            found.append(named)
    return found


class HdfsTransaction(SinkTransaction):
    """One task attempt's staged file; none when the task has no rows."""

    def __init__(self, hdfs: WebHdfs, staging: str, format: str, task: TaskScope, subject: str) -> None:
        self._names = new_names(task, format)
        self._task = task
        self._format = format
        self._hdfs = hdfs
        self._path = posixpath.join(staging, self._names.staged)
        self._subject = subject
        self._upload: Upload | None = None
        self._writer: Writer | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with translated(self._subject, f"write {self._path}"):
            if self._writer is None:
                self._upload = Upload(self._hdfs, self._path)
                self._writer = WRITERS[self._format](cast(BinaryIO, self._upload), batch.schema)
            self._writer.write(batch)
        self._rows += batch.num_rows

    def pre_commit(self) -> Handle:
        if self._writer is None or self._upload is None:
            return Handle(owner=self._task.owner, subtask=self._task.subtask, rows=0, bytes=0, payload={})
        with translated(self._subject, f"write {self._path}"):
            self._writer.finish()
            self._upload.finish()
            FILE_SENT.hit(self._task.epoch.epoch)
            status = self._hdfs.status(self._path)
        if status is None or status.length != self._upload.length:
            there = "it is not there" if status is None else f"it has {status.length}"
            raise SinkError(
                f"{self._subject}: of {self._path}, {self._upload.length} bytes were sent, and {there}. The upload "
                "was cut short; the epoch is rerun."
            )
        FILE_CHECKED.hit(self._task.epoch.epoch)
        payload = {
            "staged": self._names.staged,
            "final": self._names.final,
            "length": status.length,
            "sha256": self._upload.sha256,
            "file_id": status.file_id,
        }
        return Handle(
            owner=self._task.owner,
            subtask=self._task.subtask,
            rows=self._rows,
            bytes=status.length,
            payload=payload,
        )

    def discard(self) -> None:
        if self._upload is not None:
            self._upload.discard()


PIECE_BYTES = 1024 * 1024
"""Maximum size of a file that is sent in one request, in bytes."""
PIECES_WAITING = 4
_SENT_BYTES = 128 * 1024
"""Maximum number of bytes per write to the socket, to keep intermediate copies small."""
_LOOK_SECONDS = 0.2


class Upload(io.RawIOBase):
    """A file that a format's writer can write to. The file at ``path`` is created when the first piece is full. The
    server's response does not prove that the whole file arrived: compare :attr:`length` with the file's status."""

    def __init__(self, hdfs: WebHdfs, path: str) -> None:
        super().__init__()
        self.length = 0
        self._hdfs = hdfs
        self._path = path
        self._digest = hashlib.sha256()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._stream: _Stream | None = None
        self._discarded = False

    @property
    def sha256(self) -> str:
        """Hash of all data written before :meth:`finish`, in hexadecimal."""
        return self._digest.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        if self._discarded:  # a format's writer may still end its file when it is collected
            return len(piece)
        self._digest.update(piece)
        self.length += len(piece)
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes >= PIECE_BYTES:
            if self._stream is None:
                self._stream = _Stream(self._hdfs, self._path)
            self._stream.send(self._take())
        return len(piece)

    def finish(self) -> None:
        """Send the buffered bytes, and wait for the server's response. Raises the error of the request."""
        if self._stream is None:
            self._hdfs.create(self._path, b"".join(self._take()))
        else:
            self._stream.send(self._take())
            self._stream.end()

    def discard(self) -> None:
        """Remove the file. Never raises: the sweep finds files that cannot be removed now."""
        self._discarded = True
        with suppress(*ANSWERS):
            if self._stream is not None:
                # To its end, not broken off: a file that is still being made could appear after it was deleted.
                self._stream.end()
        with suppress(*ANSWERS):
            self._hdfs.delete(self._path)

    def _take(self) -> list[bytes]:
        pieces, self._held, self._held_bytes = self._held, [], 0
        return pieces


class _Stream:
    """One request in a background thread, whose body is sent piece by piece."""

    def __init__(self, hdfs: WebHdfs, path: str) -> None:
        self._waiting: queue.Queue[list[bytes] | None] = queue.Queue(PIECES_WAITING)
        self._failure: Exception | None = None
        self._task = BackgroundTask("epochal-hdfs-upload", lambda: self._run(hdfs, path))

    def send(self, pieces: list[bytes]) -> None:
        """Queue the next piece; blocks while the queue is full. Raises the error that ended the request."""
        self._put(pieces)

    def end(self) -> None:
        """Raises the error that ended the request, unless this call ended it. May be called again."""
        if self._task.is_running:
            self._put(None)
            self._task.wait()
        if self._failure is not None:
            raise self._failure

    def _put(self, pieces: list[bytes] | None) -> None:
        while self._task.is_running:
            with suppress(queue.Full):
                self._waiting.put(pieces, timeout=_LOOK_SECONDS)
                return
        if self._failure is not None:
            raise self._failure

    def _run(self, hdfs: WebHdfs, path: str) -> None:
        try:
            hdfs.create(path, _cut(iter(self._waiting.get, None)))
        except Exception as error:  # noqa: BLE001  raised where the next piece is sent
            self._failure = error


def _cut(blocks: Iterable[list[bytes]]) -> Iterator[bytes | memoryview]:
    """The same bytes in pieces of suitable size: small pieces are joined, large ones split without a copy."""
    for pieces in blocks:
        small: list[bytes] = []
        for piece in pieces:
            if len(piece) < _SENT_BYTES:
                small.append(piece)
                continue
            if small:
                yield b"".join(small)
                small = []
            view = memoryview(piece)
            yield from (view[at : at + _SENT_BYTES] for at in range(0, len(view), _SENT_BYTES))
        if small:
            yield b"".join(small)
