"""Files on object stores for the files source and table: flat listings, and reading of recorded versions.

A listing takes one request per 1,000 objects below the location's fixed folders. It reports an entity tag for each
object, and tasks read exactly this version, or fail. The folder of a files sink has lists of committed files
(:mod:`epochal.backends.object_files.lists`): only these files are read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final

from epochal.backends.object_files.address import ObjectLocation, translated
from epochal.backends.object_files.lists import DATA, LISTS, CommitList, CommittedFiles
from epochal.connectors.fetched_files import FetchedFiles
from epochal.connectors.file_listing import FileRecord
from epochal.connectors.file_partitions import fixed_part, is_read, is_visible
from epochal.connectors.file_slices import changed
from epochal.errors import SourceError, SourceUnavailable
from epochal.snapshots.object_store import ObjectStatus, ObjectStoreFiles

_MAGIC: Final = frozenset("*?[")
_REQUESTS: Final = 16
"""Maximum number of concurrent requests for the status of files."""


class ObjectFiles(FetchedFiles):
    """Files below a location. ``what``: ``Source`` or ``Table``, for messages. ``names_rise``: later listings begin
    after the last name before which all files are taken."""

    def __init__(self, place: ObjectLocation, what: str = "Source", names_rise: bool = False) -> None:
        self.subject = f"{what} files:{place.url}"
        self.location = place.url
        self._place = place
        self._names_rise = names_rise
        self._listed: list[str] = []
        self._after: str | None = None
        self._committed = CommittedFiles()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_listed": [], "_after": None, "_committed": CommittedFiles()}

    @property
    def kind(self) -> str:
        return "files"

    def list_all(self, recursive: bool) -> list[FileRecord]:
        return sorted(self._list(recursive, None, lambda path: False))

    def list_new(self, recursive: bool, is_taken: Callable[[str], bool]) -> list[FileRecord]:
        if not self._names_rise:
            return sorted(self._list(recursive, None, is_taken))
        left = min((path for path in self._listed if not is_taken(path)), default=None)
        taken = [path for path in self._listed if left is None or path < left]
        self._after = max(taken, default=self._after)
        found: list[FileRecord] = sorted(self._list(recursive, self._after, is_taken))
        self._listed = [record.path for record in found]
        return found

    def current(self, records: Sequence[FileRecord]) -> dict[str, FileRecord]:
        store = self._store
        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="object-status") as pool:
            found = pool.map(store.status, [self._key(record.path) for record in records])
            return {self._path(status.path): self._record(status) for status in found if status is not None}

    def check(self, records: Sequence[FileRecord]) -> dict[str, FileRecord]:
        """``records``: tasks read exactly the recorded versions."""
        return {record.path: record for record in records}

    def read(self, record: FileRecord, offset: int, length: int) -> bytes:
        key = self._key(record.path)
        try:
            return self._store.read_version(key, record.version, offset, length)
        except (FileExistsError, FileNotFoundError) as error:
            if not record.version:
                raise
            now = self._store.status(key)
            if now is not None and self._record(now) == record:
                raise  # the store contradicts itself
            raise changed(record, None if now is None else self._record(now)) from error

    def pieces(self, record: FileRecord, size: int) -> Iterator[bytes]:
        # The size of a file that was not listed is unknown.
        offset, end = 0, record.size if record.version else None
        while end is None or offset < end:
            piece = self.read(record, offset, size if end is None else min(size, end - offset))
            if piece:
                yield piece
            offset += len(piece)
            if len(piece) < size:
                return

    def check_unchanged(self, record: FileRecord) -> None:
        """Nothing: each request names the version."""

    def translated(self, what: str, subject: str | None = None) -> AbstractContextManager[None]:
        return translated(subject or self.subject, what, SourceError, SourceUnavailable)

    def _list(self, recursive: bool, after: str | None, is_taken: Callable[[str], bool]) -> list[FileRecord]:
        location, store = self._place.path, self._store
        folder = fixed_part(location).strip("/") if _MAGIC & set(location) else location
        listing = _Listing(location, folder, recursive)
        for status in store.objects(folder, None if after is None else self._key(after)):
            listing.add(status)
        found = listing.selected()
        if listing.lists:
            found += self._committed_files(store, folder, listing, is_taken)
        if not found and not listing.seen and after is None and location:
            single = store.status(location)
            found = [single] if single is not None else []
        return [self._record(status) for status in found]

    def _committed_files(
        self, store: ObjectStoreFiles, folder: str, listing: _Listing, is_taken: Callable[[str], bool]
    ) -> list[ObjectStatus]:
        """The files of a sink's folder that its lists name. Lists whose files are all taken are not read."""
        needed = {
            posixpath.basename(posixpath.dirname(path)) for path in listing.data if not is_taken(self._path(path))
        }
        names = self._committed.of(store, folder, [each for each in listing.lists if each.folder in needed])
        return [status for path, status in listing.data.items() if path in names or is_taken(self._path(path))]

    @property
    def _store(self) -> ObjectStoreFiles:
        return self._place.address.connect()

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self._place.address.url}/")

    def _path(self, key: str) -> str:
        return f"{self._place.address.url}/{key}"

    def _record(self, status: ObjectStatus) -> FileRecord:
        # Listings have fractions of a second, answers to HEAD whole seconds.
        seconds = int(status.modified.timestamp())
        return FileRecord(seconds * 1_000_000_000, self._path(status.path), status.size, status.version)


@dataclass
class _Listing:
    """Selects the files of a source among the objects below ``folder``. ``location``: the path or pattern.

    As in :func:`epochal.connectors.file_listing.list_files`, an existing path is taken literally.
    """

    location: str
    folder: str
    recursive: bool
    seen: bool = False
    """True if there is an object below ``folder``."""
    data: dict[str, ObjectStatus] = field(default_factory=dict)
    """The files of a sink, committed or not, by path."""
    lists: list[CommitList] = field(default_factory=list)
    """The lists of a sink's committed files."""
    _matching: list[ObjectStatus] = field(default_factory=list)
    _below: list[ObjectStatus] = field(default_factory=list)
    _folders: set[str] = field(default_factory=set)

    def add(self, status: ObjectStatus) -> None:
        self.seen = True
        path = status.path
        self._folders.add(posixpath.dirname(path))
        if path == self.location or path.startswith(self._inside):
            self._add_below(status)
        elif self._parts and self._is_matching(self._names(path, self.folder)):
            self._matching.append(status)

    def selected(self) -> list[ObjectStatus]:
        """The files to read. An empty object with the name of a folder is the folder's mark of other programs."""
        found = self._below if self._below or self.data else self._matching
        return [each for each in found if each.size or each.path not in {self.location, *self._folders}]

    def _add_below(self, status: ObjectStatus) -> None:
        folders, name = self._names(status.path, self.location)
        if folders[:1] == (LISTS,):
            if (commit_list := CommitList.of(status)) is not None:
                self.lists.append(commit_list)
        elif folders[:1] == (DATA,):
            self.data[status.path] = status
        elif is_visible(name) and self._are_read(folders):
            self._below.append(status)

    def _is_matching(self, names: _Names) -> bool:
        """Check whether the pattern matches the file, or a folder whose files are read."""
        folders, name = names
        if not is_visible(name):
            return False
        every = (*folders, name)
        for length in (len(self._parts),) if "**" not in self._parts else range(1, len(every) + 1):
            if _matches(self._parts, every[:length]):
                if length == len(every):
                    return self._lead(folders)
                matched = every[length - 1 : -1]
                if self._lead(every[: length - 1]) and self._are_read(matched):
                    return True
        return False

    def _lead(self, folders: Sequence[str]) -> bool:
        return all(is_visible(each) or is_read(each, self.recursive) for each in folders)

    def _are_read(self, folders: Sequence[str]) -> bool:
        return all(is_read(each, self.recursive) for each in folders)

    @cached_property
    def _parts(self) -> Sequence[str]:
        if self.folder == self.location:
            return ()
        return self.location[len(self.folder) :].strip("/").split("/")

    @cached_property
    def _inside(self) -> str:
        return f"{self.location}/" if self.location else ""

    @staticmethod
    def _names(path: str, folder: str) -> _Names:
        *folders, name = path[len(folder) :].strip("/").split("/")
        return tuple(folders), name


_Names = tuple[tuple[str, ...], str]
"""The folders from a folder to a file, and the file's name."""


def _matches(parts: Sequence[str], names: Sequence[str]) -> bool:
    if not parts:
        return not names
    if parts[0] == "**":
        return any(_matches(parts[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _matches(parts[1:], names[1:])


def committed_files(place: ObjectLocation) -> list[str]:
    """URLs of the files that a sink has committed, in the order of epochs. Raises ``SourceError``."""
    files = ObjectFiles(place)
    with files.translated("be listed"):
        found = files.list_all(recursive=False)
    return sorted(record.path for record in found)
