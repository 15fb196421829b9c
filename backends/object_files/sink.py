"""The files sink on object stores: an epoch becomes visible by one conditional write of the list of its files.

Layout and lists: :mod:`epochal.backends.object_files.lists`. Readers read the files that the lists name
(``files.committed_files``); ``files.source`` does so. Programs that list the folder themselves find no files, as names
that start with ``_`` are hidden.

=====  ======================================================================================
step   what
=====  ======================================================================================
T1     nothing
T2     rows go to a temporary file of the task
T3     one upload under a unique name; handle: path, size, sha256, version
E5     1 list the epoch's objects: those of the handles must be there
       2 create the epoch's list, if there is none (``If-None-Match``); if there is one, it must
         name exactly these files
E7     remove objects of the epoch that no handle names
R1     the owner is created, or taken over from another branch (``If-Match``); after a rollback,
       epochs of other branches that have objects and no list get an empty list
=====  ======================================================================================

Every write either has a unique name or is conditional, and lists are never deleted. A request that a dead driver has
sent and that lands late therefore finds its work done by a successor, or is refused. After an error the lists decide,
never the error. An aborted request can leave an object that no list names; readers do not see it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress

import pyarrow as pa

from epochal.backends.epoch_folders import OWNER_FILE, FolderOwner, check_columns, check_owner, check_unowned
from epochal.backends.file_formats import WRITERS
from epochal.backends.object_files.address import ObjectLocation, translated
from epochal.backends.object_files.lists import (
    DATA,
    LISTS,
    CommitList,
    EpochList,
    data_folder,
    joined,
    list_name,
    read_lists,
)
from epochal.backends.object_files.transaction import (
    DataName,
    ObjectTransaction,
    UploadedFile,
    mark_of,
    uploaded_files,
)
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.catalog import Succession
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import OptionError, OutcomeUnknown, SinkAhead, SinkError, SinkUnavailable
from epochal.faults import declare
from epochal.snapshots.object_store import ObjectStatus, ObjectStoreFiles

CHECKED = declare("E5.objects.checked", "the objects of the epoch are complete, no list names them")
LISTED = declare("E5.objects.listed", "the list of the epoch exists: its rows are visible")
CLAIMED = declare("R1.objects.claimed", "the owner of the sink's folder is written")
INHERITED = declare("R1.objects.inherited", "the folder has passed to the branch of a rollback")
ABANDONED = declare("R1.objects.abandoned", "an undecided epoch of another branch has an empty list")
NOTED = declare("R1.objects.noted", "it is noted that an epoch is moved aside, its rows are visible")
MOVED_ASIDE = declare("R1.objects.moved-aside", "one epoch that a rollback left behind is no longer visible")
MOVED_BACK = declare("R1.objects.moved-back", "one epoch that an earlier rollback moved aside is visible again")

ASIDE = "_aside"
"""Folder of empty objects, one for each epoch that was ever moved aside."""


class ObjectFilesBackend(SinkBackend):
    """Sink backend of ``files.sink`` on object stores. ``format`` is parquet, json (lines) or csv."""

    def __init__(self, sink: SinkPlace, place: ObjectLocation, format: str = "parquet") -> None:
        if format not in WRITERS:
            raise OptionError(f"The files sink cannot write {format!r}; formats are {', '.join(WRITERS)}.")
        self._place = place
        self._format = format
        self._subject = f"Sink {sink.sink!r} ({self.target})"

    @property
    def kind(self) -> str:
        return "files"

    @property
    def target(self) -> str:
        return f"files:{self._place.url}"

    def check(self, schema: pa.Schema) -> None:
        check_columns(self._subject, self._format, schema)

    def succeed(self, epoch: EpochScope, succession: Succession) -> None:
        with self._translated("take over"):
            if not self._inherit(epoch, succession):
                return
            self._abandon(epoch, succession)
            self._rearrange(succession)

    def recover(self, epoch: EpochScope) -> None:
        with self._translated("take over"):
            owner = self._claim(epoch)
            CLAIMED.hit(epoch.epoch)
            last = max(epoch.epoch, owner.after)
            later = [each.epoch for each in self._lists(after=last)]
            shown = [number for number, (found, _) in self._read(later).items() if found.files]
            if shown:
                raise SinkAhead.of(self._subject, max(shown), epoch.application, epoch.epoch)

    def shown(self, epoch: EpochScope) -> int | None:
        with self._translated("look what is shown"):
            for found in sorted(self._lists(), key=lambda each: each.epoch, reverse=True):
                if any(content.files for content, _ in self._read([found.epoch]).values()):
                    return found.epoch
            return 0

    def start(self, task: TaskScope) -> ObjectTransaction:
        return ObjectTransaction(self._place.address, self._place.path, self._format, task, self._subject)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        files = uploaded_files(handles)
        if handles and not files:
            return
        # Without handles, the epoch is about to be given up: its empty list refuses late requests.
        content = EpochList(epoch.epoch, tuple(sorted(each.file for each in files)))
        with self._translated(f"commit epoch {epoch.epoch}"):
            self._check_objects(epoch, files)
            CHECKED.hit(epoch.epoch)
            with suppress(FileExistsError):
                self._store.create(self._at(list_name(epoch.epoch)), content.encode())
                LISTED.hit(epoch.epoch)
                return
            if files:
                self._check_list(content)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        files = uploaded_files(handles)
        if not files:
            return
        with self._translated(f"abort epoch {epoch.epoch}"):
            # The commit of an epoch that is given up may have succeeded: its rows stay.
            listed = {file for content, _ in self._read([epoch.epoch]).values() for file in content.all_files}
            for each in files:
                if each.file not in listed:
                    self._delete(self._at(each.file.path))

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        kept = {self._at(each.file.path) for each in uploaded_files(keep)}
        removed = 0
        with self._translated(f"sweep epoch {epoch.epoch}"):
            swept = [path for path in self._objects(epoch.epoch) if path not in kept and _is_swept(path, epoch)]
            if swept:  # an epoch can be swept again after a successor has committed it
                listed = {
                    self._at(file.path) for found, _ in self._read([epoch.epoch]).values() for file in found.all_files
                }
                for path in swept:
                    if path not in listed:
                        self._delete(path)
                        removed += 1
        return removed

    def _check_objects(self, epoch: EpochScope, files: Sequence[UploadedFile]) -> None:
        there = self._objects(epoch.epoch) if files else {}
        for each in files:
            path = self._at(each.file.path)
            if not self._is_same(there.get(path), each):
                raise SinkError(
                    f"{self._subject} has lost {path}, a part of epoch {epoch.epoch}: it is missing or has changed "
                    f"({each.file.size} bytes, sha256 {each.file.sha256}). Restore it from a copy; the commit is "
                    "retried."
                )

    def _is_same(self, found: ObjectStatus | None, expected: UploadedFile) -> bool:
        if found is None or found.size != expected.file.size:
            return False
        if found.version == expected.version:
            return True
        return hashlib.sha256(self._store.read(found.path)).hexdigest() == expected.file.sha256

    def _check_list(self, content: EpochList) -> None:
        """Raises ``SinkError`` unless the existing list is that of the epoch."""
        path = self._at(list_name(content.epoch))
        found, _ = self._read([content.epoch])[content.epoch]
        if found.all_files != content.files:
            raise SinkError(
                f"{self._subject}: {path} does not name exactly the files of epoch {content.epoch}. Another program "
                "has written it, or the epoch was given up. Restore it from a copy; the commit is retried."
            )

    def _claim(self, epoch: EpochScope) -> FolderOwner:
        """Create the owner, or check that it names this application and branch."""
        where, mine, path = f"{self._subject}: its folder", FolderOwner.of(epoch), self._at(OWNER_FILE)
        try:
            owner = FolderOwner.decode(self._store.read(path))
        except FileNotFoundError:
            check_unowned(where, self._names())
            with suppress(FileExistsError):
                self._store.create(path, mine.encode().encode())
            self._check_conditional(path, mine)
            owner = FolderOwner.decode(self._store.read(path))
        check_owner(where, owner, mine)
        return owner

    def _check_conditional(self, path: str, mine: FolderOwner) -> None:
        """Raises ``SinkError`` for a store that ignores the condition of a write."""
        try:
            self._store.create(path, mine.encode().encode())
        except FileExistsError:
            return
        raise SinkError(
            f"{self._subject}: the store ignores If-None-Match, so that two drivers could commit one epoch. Use a "
            "store with conditional writes."
        )

    def _inherit(self, epoch: EpochScope, succession: Succession) -> bool:
        """Return whether the folder belongs to this branch, after taking it over from an earlier branch if
        necessary."""
        path, mine = self._at(OWNER_FILE), FolderOwner.of(epoch, succession)
        try:
            data, version = self._store.read_with_version(path)
        except FileNotFoundError:
            return False
        owner = FolderOwner.decode(data)
        if owner.application != mine.application or owner.branch not in (mine.branch, *succession.branches):
            return False
        if not owner.is_same(mine):
            self._replace(path, mine.encode().encode(), version, lambda found: FolderOwner.decode(found).is_same(mine))
            INHERITED.hit(epoch.epoch)
        return True

    def _abandon(self, epoch: EpochScope, succession: Succession) -> None:
        """Give undecided epochs of other branches an empty list, so that no late request commits them; remove their
        objects."""
        marks = {mark_of(branch) for branch in succession.branches} - {mark_of(epoch.branch)}
        listed = {data_folder(each.epoch) for each in self._lists() if not each.is_empty}
        staged: dict[str, list[str]] = {}
        for status in self._store.objects(self._at(DATA)):
            folder, name = self._below(status.path).rpartition("/")[0], DataName.parse(status.path)
            if folder not in listed and name is not None and name.branch in marks:
                staged.setdefault(folder, []).append(status.path)
        for folder, paths in staged.items():
            number = int(folder.rpartition("=")[2])
            try:
                self._store.create(self._at(list_name(number)), EpochList(number, ()).encode())
                ABANDONED.hit(number)
            except FileExistsError:
                if any(found.all_files for found, _ in self._read([number]).values()):
                    continue
            for path in paths:
                self._delete(path)

    def _rearrange(self, succession: Succession) -> None:
        """Move epochs aside and back, by replacing their lists."""
        if succession.move_aside:
            leaving = [each.epoch for each in self._lists() if succession.is_left_behind(each.epoch)]
            for number, (found, version) in self._read(leaving).items():
                if found.files:
                    self._store.write(self._at(f"{ASIDE}/{number:010}"), b"")
                    NOTED.hit(number)
                    self._replace_list(found.moved_aside(), version, lambda found: not found.files)
                    MOVED_ASIDE.hit(number)
        noted = [int(status.path.rpartition("/")[2]) for status in self._store.objects(self._at(ASIDE))]
        returning = [number for number in noted if not succession.is_left_behind(number)]
        for number, (found, version) in self._read(returning).items():
            if found.aside:
                self._replace_list(found.moved_back(), version, lambda found: not found.aside)
                MOVED_BACK.hit(number)

    def _replace_list(self, content: EpochList, version: str, is_done: Callable[[EpochList], bool]) -> None:
        path = self._at(list_name(content.epoch))
        self._replace(path, content.encode(), version, lambda data: is_done(EpochList.decode(path, data)))

    def _replace(self, path: str, data: bytes, version: str, is_done: Callable[[bytes], bool]) -> None:
        """Replace an object of this version. A refusal can be that of a repeated request: the object decides."""
        try:
            self._store.replace(path, data, version)
        except FileExistsError as error:
            if not is_done(self._store.read(path)):
                raise SinkUnavailable(
                    f"{self._subject}: another driver has changed {path} at the same time. The step is retried."
                ) from error

    def _lists(self, after: int | None = None) -> list[CommitList]:
        """The lists of epochs, or of those after an epoch."""
        offset = None if after is None else self._at(list_name(after))
        found = map(CommitList.of, self._store.objects(self._at(LISTS), offset))
        return [each for each in found if each is not None]

    def _read(self, epochs: Sequence[int]) -> Mapping[int, tuple[EpochList, str]]:
        return read_lists(self._store, self._place.path, epochs)

    def _objects(self, epoch: int) -> dict[str, ObjectStatus]:
        return {status.path: status for status in self._store.objects(self._at(data_folder(epoch)))}

    def _names(self) -> Iterator[str]:
        """The first part of the name of each object below the sink's path, until one that is visible."""
        for status in self._store.objects(self._place.path):
            name = self._below(status.path).partition("/")[0]
            yield name
            if name and not name.startswith(("_", ".")):
                return

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._store.delete(path)

    def _at(self, path: str) -> str:
        return joined(self._place.path, path)

    def _below(self, path: str) -> str:
        return path[len(self._place.path) :].lstrip("/")

    @property
    def _store(self) -> ObjectStoreFiles:
        return self._place.address.connect()

    def _translated(self, what: str) -> AbstractContextManager[None]:
        waits = OutcomeUnknown if what.startswith("commit") else SinkUnavailable
        return translated(self._subject, what, SinkError, waits)


def _is_swept(path: str, epoch: EpochScope) -> bool:
    name = DataName.parse(path)
    return name is not None and name.is_swept(epoch)
