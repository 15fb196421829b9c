"""Lists of committed files of the files sink on object stores.

An object store renames nothing, and a listing shows every object. A file therefore counts only if the list of its epoch
names it. Layout, below the sink's own path::

    _data/epoch=0000000012/part-00001-{branch}-{attempt}-{unique}.parquet    written by a task, committed or not
    _epochs/0000000012.json                                                  the list of the epoch
    _epochal.json                                                            owner: application and branch

A list is a JSON object in one line. ``files`` has paths relative to the sink's path, with sizes in bytes and sha256. A
list never disappears: a rollback that moves an epoch aside replaces it by a list whose ``files`` is empty, and whose
``aside`` has the files. A late request of a driver that has ended can therefore never create it again. ``revision``
makes each version of a list different, so that a late conditional replacement fails, too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

from epochal.errors import SinkError
from epochal.snapshots.object_store import ObjectStatus, ObjectStoreFiles

DATA: Final = "_data"
LISTS: Final = "_epochs"
_REQUESTS: Final = 16


def joined(*parts: str) -> str:
    """The path of an object in a bucket, whose root is ``""``."""
    return "/".join(part for part in parts if part)


def data_folder(epoch: int) -> str:
    """The folder of an epoch's files, below the sink's path."""
    return f"{DATA}/epoch={epoch:010}"


def list_name(epoch: int) -> str:
    """The list of an epoch, below the sink's path. Names rise with the epochs."""
    return f"{LISTS}/{epoch:010}.json"


@dataclass(frozen=True, order=True)
class ListedFile:
    """A file of an epoch: path below the sink's path, size in bytes, sha256 in hexadecimal."""

    path: str
    size: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True)
class EpochList:
    """The content of a list. ``files`` are visible; ``aside`` were moved aside by a rollback."""

    epoch: int
    files: tuple[ListedFile, ...]
    aside: tuple[ListedFile, ...] = ()
    revision: int = 0

    def encode(self) -> bytes:
        content = {
            "epoch": self.epoch,
            "files": [file.as_json() for file in sorted(self.files)],
            "aside": [file.as_json() for file in sorted(self.aside)],
            "revision": self.revision,
        }
        return json.dumps(content).encode() + b"\n"

    @classmethod
    def decode(cls, path: str, data: bytes) -> EpochList:
        """Raises ``SinkError`` for other content."""
        try:
            found = json.loads(data)
            files, aside = (
                tuple(sorted(ListedFile(each["path"], int(each["size"]), each["sha256"]) for each in found[name]))
                for name in ("files", "aside")
            )
            return cls(int(found["epoch"]), files, aside, int(found["revision"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(f"{path} is not a list of a files sink: {error}. Restore it from a copy.") from error

    @property
    def all_files(self) -> tuple[ListedFile, ...]:
        return tuple(sorted((*self.files, *self.aside)))

    def moved_aside(self) -> EpochList:
        return replace(self, files=(), aside=self.all_files, revision=self.revision + 1)

    def moved_back(self) -> EpochList:
        return replace(self, files=self.all_files, aside=(), revision=self.revision + 1)


@dataclass(frozen=True)
class CommitList:
    """A list as found in a listing."""

    path: str
    epoch: int
    version: str
    size: int

    @classmethod
    def of(cls, status: ObjectStatus) -> CommitList | None:
        """``None`` for an object that is not a list."""
        number = status.path.rpartition("/")[2].removesuffix(".json")
        if not number.isdigit() or not status.path.endswith(".json"):
            return None
        return cls(status.path, int(number), status.version, status.size)

    @property
    def is_empty(self) -> bool:
        """True for the list of an epoch that was given up or abandoned: it never had files."""
        return self.size == len(EpochList(self.epoch, ()).encode())

    @property
    def folder(self) -> str:
        """The name of the folder with the epoch's files."""
        return data_folder(self.epoch).rpartition("/")[2]


class CommittedFiles:
    """Cache of the files that lists name, by the version of each list."""

    def __init__(self) -> None:
        self._known: dict[CommitList, tuple[str, ...]] = {}

    def of(self, store: ObjectStoreFiles, folder: str, lists: Sequence[CommitList]) -> set[str]:
        """The paths of the committed files. ``folder``: the sink's path. Raises ``OSError`` and ``SinkError``."""
        unknown = [each for each in lists if each not in self._known]
        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="commit-lists") as pool:
            for each, data in zip(unknown, pool.map(lambda each: store.read(each.path), unknown), strict=True):
                files = EpochList.decode(each.path, data).files
                self._known[each] = tuple(joined(folder, file.path) for file in files)
        return {path for each in lists for path in self._known[each]}


def read_lists(store: ObjectStoreFiles, folder: str, epochs: Iterable[int]) -> dict[int, tuple[EpochList, str]]:
    """The existing lists among those of ``epochs``, with their versions."""

    def read(epoch: int) -> tuple[EpochList, str] | None:
        path = joined(folder, list_name(epoch))
        try:
            data, version = store.read_with_version(path)
        except FileNotFoundError:
            return None
        return EpochList.decode(path, data), version

    numbers = list(epochs)
    with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="commit-lists") as pool:
        return {
            epoch: found for epoch, found in zip(numbers, pool.map(read, numbers), strict=True) if found is not None
        }
