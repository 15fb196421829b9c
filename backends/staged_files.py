"""Transaction of one task attempt of the files sink, and its handle."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from epochal.backends.epoch_folders import new_names
from epochal.backends.file_formats import WRITERS, Writer, checksum
from epochal.contracts.backend import SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import EpochalError, SinkError, StorageFull
from epochal.faults import declare

FILE_WRITTEN = declare("T3.files.written", "the staged file is written, not yet durable")
FILE_DURABLE = declare("T3.files.durable", "the staged file and its folder entry are durable")


def is_whole(path: Path, size: int) -> bool:
    """Return whether a file of this size is at ``path``."""
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


class FilesTransaction(SinkTransaction):
    """One task attempt's staged file; none when the task has no rows."""

    def __init__(self, staging: Path, format: str, task: TaskScope) -> None:
        names = new_names(task, format)
        self._task = task
        self._format = format
        self._staged = staging / names.staged
        self._final = names.final
        self._file: BinaryIO | None = None
        self._writer: Writer | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with translated(self._staged.parent, "write"):
            if self._writer is None:
                self._staged.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._staged.open("xb")
                self._writer = WRITERS[self._format](self._file, batch.schema)
            self._writer.write(batch)
        self._rows += batch.num_rows

    def pre_commit(self) -> Handle:
        if self._writer is None or self._file is None:
            return Handle(owner=self._task.owner, subtask=self._task.subtask, rows=0, bytes=0, payload={})
        with translated(self._staged.parent, "pre-commit"):
            self._writer.finish()
            self._file.flush()
            FILE_WRITTEN.hit(self._task.epoch.epoch)
            os.fsync(self._file.fileno())
            self._file.close()
            synchronise(self._staged.parent)
            length = self._staged.stat().st_size
            sha256 = checksum(self._staged)
            FILE_DURABLE.hit(self._task.epoch.epoch)
        payload = {"staged": self._staged.name, "final": self._final, "length": length, "sha256": sha256}
        return Handle(
            owner=self._task.owner, subtask=self._task.subtask, rows=self._rows, bytes=length, payload=payload
        )

    def discard(self) -> None:
        # The sweep finds files that cannot be closed or removed now.
        with suppress(OSError, ValueError, pa.ArrowException):
            if self._writer is not None:
                self._writer.finish()
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
            self._staged.unlink(missing_ok=True)


def synchronise(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translated(folder: Path, what: str) -> Iterator[None]:
    """Inside the block, the operating system's errors become Epochal's, naming the folder and what was being done."""
    try:
        yield
    except EpochalError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"The files sink could not {what}: no space is left at {folder}. Free space; the step is retried."
            ) from error
        reason = f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
        raise SinkError(
            f"The files sink could not {what} in {folder}: {reason}. Check the folder's permissions and mount."
        ) from error
