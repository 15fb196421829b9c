"""Transaction of one task attempt of the files sink on object stores, and its handle."""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import pyarrow as pa

from epochal.backends.file_formats import WRITERS, Writer, temporary_file_error
from epochal.backends.object_files.address import ObjectAddress, translated
from epochal.backends.object_files.lists import ListedFile, data_folder, joined
from epochal.contracts.backend import SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import SinkError, SinkUnavailable
from epochal.faults import declare

UPLOADED = declare("T3.objects.uploaded", "the object of the task is durable, no list names it")
_IN_MEMORY_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class DataName:
    """Name of the object of a task attempt. It is unique, so that a late request changes no other object."""

    subtask: int
    branch: str
    """The beginning of a hash of the branch's name, which may be long."""
    attempt: int
    unique: str

    @classmethod
    def new(cls, task: TaskScope) -> DataName:
        return cls(task.subtask, mark_of(task.epoch.branch), task.epoch.attempt, uuid.uuid4().hex)

    @classmethod
    def parse(cls, path: str) -> DataName | None:
        """``None`` for an object that no task wrote."""
        match path.rpartition("/")[2].partition(".")[0].split("-"):
            case ["part", subtask, branch, attempt, unique] if subtask.isdigit() and attempt.isdigit():
                return cls(int(subtask), branch, int(attempt), unique)
        return None

    def with_suffix(self, format: str) -> str:
        return f"part-{self.subtask:05}-{self.branch}-{self.attempt}-{self.unique}.{format}"

    def is_swept(self, epoch: EpochScope) -> bool:
        """Return whether this branch wrote it, in this attempt or an earlier one."""
        return self.branch == mark_of(epoch.branch) and self.attempt <= epoch.attempt


def mark_of(branch: str) -> str:
    return hashlib.sha256(branch.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class UploadedFile:
    """A file of a handle. ``version`` identifies the object, unless an administrator has restored it from a copy."""

    file: ListedFile
    version: str


def uploaded_files(handles: Sequence[Handle]) -> list[UploadedFile]:
    """The files that the handles name."""
    found = (handle.payload for handle in handles if handle.payload)
    return [
        UploadedFile(ListedFile(str(each["path"]), int(each["size"]), str(each["sha256"])), str(each["version"]))
        for each in found
    ]


class ObjectTransaction(SinkTransaction):
    """One task attempt's object; none when the task has no rows. ``folder``: the sink's path in the bucket."""

    def __init__(self, address: ObjectAddress, folder: str, format: str, task: TaskScope, subject: str) -> None:
        self._address = address
        self._path = f"{data_folder(task.epoch.epoch)}/{DataName.new(task).with_suffix(format)}"
        self._object = joined(folder, self._path)
        self._format = format
        self._task = task
        self._subject = subject
        self._file: BinaryIO | None = None
        self._writer: Writer | None = None
        self._rows = 0
        self._sent = False

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        try:
            if self._writer is None:
                self._file = cast(BinaryIO, tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES))  # noqa: SIM115  closed later
                self._writer = WRITERS[self._format](self._file, batch.schema)
            self._writer.write(batch)
        except OSError as error:
            raise temporary_file_error(self._subject, error) from error
        self._rows += batch.num_rows

    def pre_commit(self) -> Handle:
        if self._writer is None or self._file is None:
            return Handle(owner=self._task.owner, subtask=self._task.subtask, rows=0, bytes=0, payload={})
        try:
            self._writer.finish()
            size = self._file.tell()
            self._file.seek(0)
            sha256 = hashlib.file_digest(cast(Any, self._file), "sha256").hexdigest()
        except OSError as error:
            raise temporary_file_error(self._subject, error) from error
        self._sent = True
        with translated(self._subject, f"write {self._object}", SinkError, SinkUnavailable):
            version = self._address.connect().upload(self._object, self._file)
        self._file.close()
        UPLOADED.hit(self._task.epoch.epoch)
        payload = {"path": self._path, "size": size, "sha256": sha256, "version": version}
        return Handle(owner=self._task.owner, subtask=self._task.subtask, rows=self._rows, bytes=size, payload=payload)

    def discard(self) -> None:
        # The sweep finds an object that cannot be removed now.
        with suppress(OSError, ValueError, pa.ArrowException):
            if self._writer is not None:
                self._writer.finish()
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        if self._sent:
            with suppress(OSError):
                self._address.connect().delete(self._object)
