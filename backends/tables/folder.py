"""The folder of a table's files, and the names of the files that tasks stage there."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from pyarrow import fs

from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import EpochalError, SinkError, SinkUnavailable

_CHUNK = 4 << 20
ROOT = "epochal"
"""Folder of all staged files, in the folder of the table."""


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
    return f"{ROOT}/{hashlib.sha256(key.branch.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class StagedFile:
    """A file that a handle names: path in the folder of the table, and size in bytes."""

    path: str
    size: int


class TableFolder:
    """Files of one table, in this process. Paths are relative to the table's folder.

    All methods raise ``SinkError`` and, where the store does not answer, ``SinkUnavailable``.
    """

    def __init__(self, subject: str, files: fs.FileSystem, root: str, location: str = "") -> None:
        """``root``: the folder, as ``files`` has it; ``location``: its URL, if the table names files by URLs."""
        self._subject = subject
        self._files = files
        self._root = root
        self._location = location

    def relative(self, url: str) -> str:
        """Path of a file that the table names by its URL."""
        return url.removeprefix(f"{self._location}/")

    def write(self, path: str, file: BinaryIO) -> None:
        """Write a file from its beginning. It is durable and complete when this returns."""
        file.seek(0)
        with self._translated(f"write {path}"):
            at = self._at(path)
            self._files.create_dir(at.rpartition("/")[0], recursive=True)
            # With a buffer, file systems that are written in Python receive bytes.
            with self._files.open_output_stream(at, buffer_size=_CHUNK) as target:
                while chunk := file.read(_CHUNK):
                    target.write(chunk)

    def missing(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        """The files that do not exist with their size."""
        with self._translated("look for its files"):
            found = self._files.get_file_info([self._at(file.path) for file in files])
        return [file for file, info in zip(files, found, strict=True) if not info.is_file or info.size != file.size]

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        with self._translated(f"delete {path}"):
            at = self._at(path)
            if self._files.get_file_info(at).is_file:
                self._files.delete_file(at)

    def list(self, folder: str) -> list[str]:
        """Paths of all files below a folder."""
        with self._translated(f"list {folder}"):
            found = self._files.get_file_info(fs.FileSelector(self._at(folder), allow_not_found=True, recursive=True))
        return sorted(info.path[len(self._at("")) :] for info in found if info.is_file)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root else path

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        with translated(self._subject, what):
            yield


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
def translated(subject: str, what: str, away: Callable[[OSError], bool] | None = None) -> Iterator[None]:
    """Inside the block, errors of files become ``SinkError``, or ``SinkUnavailable`` if the store does not answer.

    ``away``: whether an error means this; by default, every error except a missing file and a refused permission.
    """
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).strip().rstrip(".")
        refused = isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError)
        is_away = not refused if away is None else away(error)
        kind: type[EpochalError] = SinkUnavailable if is_away else SinkError
        raise kind(f"{subject} could not {what}: {reason}. Check that the store can be reached and written.") from error
