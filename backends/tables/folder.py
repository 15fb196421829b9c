"""The folder of a table's files, and the names of the files that tasks stage there."""

from __future__ import annotations

import errno
import os
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

from pyarrow import fs

from epochal.backends.file_formats import temporary_file_error
from epochal.backends.object_files.address import ObjectLocation
from epochal.backends.object_files.transaction import mark_of
from epochal.backends.staged_files import is_whole
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import EpochalError, SinkError, SinkUnavailable, StorageFull
from epochal.snapshots.local_files import make_folder, sync_folder

_REQUESTS: Final = 16
_IN_MEMORY_BYTES: Final = 4 << 20
ROOT = "epochal"
"""Folder of all staged files, in the folder of the table."""


LEAST_RETENTION_SECONDS: Final = 24 * 3600.0
"""Shortest retention of a table without a warning: files of epochs may wait for their commit during an outage."""


def staged_folder(key: EpochKey) -> str:
    """Folder of the files of an epoch. Branches may have long names, so the folder has the beginning of a hash."""
    return f"{_branch_folder(key)}/{key.epoch:010}"


def attempt_folder(scope: EpochScope) -> str:
    """Folder of the files that an attempt stages for an epoch."""
    return f"{staged_folder(scope.key)}/{scope.attempt:05}"


def merged_folder(scope: EpochScope) -> str:
    """Folder of the files that a driver writes for several epochs up to this one. No sweep of an epoch lists it: a
    version that has landed may name the files."""
    return f"{_branch_folder(scope.key)}/merged/{scope.epoch:010}-{scope.attempt:05}"


def attempt_of(path: str) -> int | None:
    """The attempt that has staged a file; ``None`` for a file that no task has staged."""
    match path.split("/"):
        case [folder, _, _, attempt, _, *_] if folder == ROOT and attempt.isdigit():
            return int(attempt)
    return None


def unique_name(task: TaskScope) -> str:
    """Beginning of the names of a task attempt's files. It is unique, so that a late request changes no other file."""
    return f"{task.subtask:05}-{uuid.uuid4().hex}"


def _branch_folder(key: EpochKey) -> str:
    return f"{ROOT}/{mark_of(key.branch)}"


@dataclass(frozen=True)
class StagedFile:
    """A file that a handle names: path in the folder of the table, and size in bytes."""

    path: str
    size: int


class NewFile(ABC):
    """A file of a table that a task writes through ``file``, which is also readable. It must not be named before
    :meth:`finish` has returned; a process that dies before leaves a part of it at most, which the sweep removes."""

    file: BinaryIO

    @abstractmethod
    def errors(self) -> AbstractContextManager[None]:
        """Inside the block, which uses ``file``, errors of the operating system become ``StorageFull``, ``SinkError``
        and ``SinkUnavailable``."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the file: it is durable when this returns. Raises as inside :meth:`errors`."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what is written. The sweep removes what cannot be removed now."""


class TableFolder(ABC):
    """Files of one table, in this process. Paths are relative to the table's folder.

    All methods raise ``SinkError`` and, where the store does not answer, ``SinkUnavailable``.
    """

    @abstractmethod
    def missing(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        """The files that do not exist with their size."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""

    @abstractmethod
    def list(self, folder: str) -> list[str]:
        """Paths of all files below a folder."""


class WritableFolder(TableFolder):
    """A folder in which tasks create files; elsewhere the library of the table creates them."""

    @abstractmethod
    def create(self, path: str) -> NewFile:
        """Begin a file. Raises as :class:`NewFile` does."""


class ArrowFolder(TableFolder):
    """A folder that Arrow reaches. ``root``: the folder, as ``files`` has it; ``location``: its URL, if the table names
    files by URLs."""

    def __init__(self, subject: str, files: fs.FileSystem, root: str, location: str = "") -> None:
        self._subject = subject
        self._files = files
        self._root = root
        self._location = location

    def relative(self, url: str) -> str:
        """Path of a file that the table names by its URL."""
        return url.removeprefix(f"{self._location}/")

    def missing(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        with translated(self._subject, "look for its files"):
            found = self._files.get_file_info([self._at(file.path) for file in files])
        return [file for file, info in zip(files, found, strict=True) if not info.is_file or info.size != file.size]

    def delete(self, path: str) -> None:
        with translated(self._subject, f"delete {path}"):
            at = self._at(path)
            if self._files.get_file_info(at).is_file:
                self._files.delete_file(at)

    def list(self, folder: str) -> list[str]:
        with translated(self._subject, f"list {folder}"):
            found = self._files.get_file_info(fs.FileSelector(self._at(folder), allow_not_found=True, recursive=True))
        return sorted(info.path[len(self._at("")) :] for info in found if info.is_file)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


class LocalFolder(WritableFolder):
    """A folder of this machine, or one that all machines mount."""

    def __init__(self, subject: str, root: str) -> None:
        self._subject = subject
        self._root = Path(root)

    def create(self, path: str) -> NewFile:
        """Begin a file in its place: a copy would cost a fifth of the time of a small task."""
        return _LocalFile(self._subject, self._root / path)

    def missing(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        with translated(self._subject, "look for its files"):
            return [file for file in files if not is_whole(self._root / file.path, file.size)]

    def delete(self, path: str) -> None:
        with translated(self._subject, f"delete {path}"):
            (self._root / path).unlink(missing_ok=True)

    def list(self, folder: str) -> list[str]:
        with translated(self._subject, f"list {folder}"):
            found = (self._root / folder).rglob("*")
            return sorted(str(path.relative_to(self._root)) for path in found if path.is_file())


class _LocalFile(NewFile):
    def __init__(self, subject: str, path: Path) -> None:
        self._subject = subject
        self._path = path
        with self.errors():
            make_folder(path.parent)
            self.file = path.open("x+b")

    @contextmanager
    def errors(self) -> Iterator[None]:
        with translated(self._subject, f"write {self._path}"):
            try:
                yield
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise StorageFull(
                    f"{self._subject} could not write a file: no space is left in {self._path.parent}. Free space; the "
                    "step is retried."
                ) from error

    def finish(self) -> None:
        with self.errors():
            with self.file:
                self.file.flush()
                os.fsync(self.file.fileno())
            sync_folder(self._path.parent)

    def discard(self) -> None:
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


class ObjectFolder(WritableFolder):
    """A folder of an object store."""

    def __init__(self, subject: str, place: ObjectLocation) -> None:
        self._subject = subject
        self._place = place
        with translated(subject, "reach the store"):
            self._store = place.address.connect()

    def create(self, path: str) -> NewFile:
        """Begin a file, which is uploaded when it is complete."""
        return _UploadedFile(self._subject, path, lambda file: self._store.upload(self._at(path), file))

    def missing(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        with (
            translated(self._subject, "look for its files"),
            ThreadPoolExecutor(_REQUESTS, thread_name_prefix="staged-files") as pool,
        ):
            found = list(pool.map(self._store.status, [self._at(file.path) for file in files]))
        return [file for file, status in zip(files, found, strict=True) if status is None or status.size != file.size]

    def delete(self, path: str) -> None:
        with translated(self._subject, f"delete {path}"), suppress(FileNotFoundError):
            self._store.delete(self._at(path))

    def list(self, folder: str) -> list[str]:
        with translated(self._subject, f"list {folder}"):
            return [status.path[len(self._at("")) :] for status in self._store.objects(self._at(folder))]

    def _at(self, path: str) -> str:
        return f"{self._place.path}/{path}" if self._place.path else path


class _UploadedFile(NewFile):
    def __init__(self, subject: str, path: str, upload: Callable[[BinaryIO], object]) -> None:
        self._subject = subject
        self._path = path
        self._upload = upload
        self.file = cast(BinaryIO, tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES))  # noqa: SIM115  closed later

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise temporary_file_error(self._subject, error) from error

    def finish(self) -> None:
        with self.file, translated(self._subject, f"write {self._path}"):
            self._upload(self.file)

    def discard(self) -> None:
        with suppress(OSError):
            self.file.close()


def check_staged(folder: TableFolder, subject: str, files: Sequence[StagedFile], epoch: EpochScope, sink: str) -> None:
    """Raises ``SinkError`` for staged files that are missing or have another size. ``epoch``: the last one of the
    commit."""
    missing = folder.missing(files)
    if missing:
        named = ", ".join(file.path for file in missing[:3]) + (", .." if len(missing) > 3 else "")
        raise SinkError(
            f"{subject} has lost {len(missing)} of {len(files)} files of epoch {epoch.epoch} before their commit: "
            f"{named}. A removal of unused files has deleted them, such as VACUUM with a short retention. Restore them "
            f"from a copy; the commit is retried. Or drop the epoch's rows in this sink: `epochal transaction abort "
            f"{epoch.application} {sink} {epoch.epoch}`."
        )


@contextmanager
def translated(subject: str, what: str) -> Iterator[None]:
    """Inside the block, errors of files become ``SinkError``, or ``SinkUnavailable`` if the store does not answer."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        refused = isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError)
        kind: type[EpochalError] = SinkError if refused else SinkUnavailable
        raise kind(
            f"{subject} could not {what}: {reason.strip().rstrip('.')}. Check that the store can be reached "
            "and written."
        ) from error


def first_line(error: BaseException) -> str:
    """The first line of a library's error, as a part of a message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
