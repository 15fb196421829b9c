"""What one task attempt of the HDFS sink writes, and what its handle says of it."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, cast

import pyarrow as pa

from epochal.backends.epoch_folders import StagedFile, new_names
from epochal.backends.file_formats import WRITERS, Writer
from epochal.backends.hdfs.client import WebHdfs, translated
from epochal.backends.hdfs.upload import Upload
from epochal.contracts.backend import SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import SinkError
from epochal.faults import declare

FILE_SENT = declare("T3.hdfs.sent", "the server has answered the upload; how long the file is, is not yet known")
FILE_CHECKED = declare("T3.hdfs.checked", "the staged file is there, whole")


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

    def __init__(self, hdfs: WebHdfs, staging: str, format: str, task: TaskScope, who: str) -> None:
        self._names = new_names(task, format)
        self._task = task
        self._format = format
        self._hdfs = hdfs
        self._path = posixpath.join(staging, self._names.staged)
        self._who = who
        self._upload: Upload | None = None
        self._writer: Writer | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with translated(self._who, f"write {self._path}"):
            if self._writer is None:
                self._upload = Upload(self._hdfs, self._path)
                self._writer = WRITERS[self._format](cast(BinaryIO, self._upload), batch.schema)
            self._writer.write(batch)
        self._rows += batch.num_rows

    def pre_commit(self) -> Handle:
        if self._writer is None or self._upload is None:
            return Handle(owner=self._task.owner, subtask=self._task.subtask, rows=0, bytes=0, payload={})
        with translated(self._who, f"write {self._path}"):
            self._writer.finish()
            self._upload.finish()
            FILE_SENT.hit(self._task.epoch.epoch)
            status = self._hdfs.status(self._path)
        if status is None or status.length != self._upload.length:
            there = "it is not there" if status is None else f"it has {status.length}"
            raise SinkError(
                f"{self._who}: of {self._path}, {self._upload.length} bytes were sent, and {there}. The upload was cut "
                "short; the epoch is run again."
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
