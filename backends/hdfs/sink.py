"""The HDFS sink: each epoch becomes visible as one folder, by one atomic rename of the NameNode.

Layout: :mod:`epochal.backends.epoch_folders`, below a path of HDFS. Reading: Spark and Hive read the folder's name as a
column ``epoch``, and skip names that start with ``_``.

=====  ======================================================================================
step   what
=====  ======================================================================================
T1     nothing; the file is created with the first piece
T2     rows go to a staged file of this task attempt
T3     the upload ends, the file's status has the length that was written; handle: staged
       name, final name, length, sha256, file id
E5     1 if the epoch's folder exists, it must hold exactly the handles' files: done
       2 move the staged files to ``e{epoch}``; existing files stay; then it must
         hold exactly the handles' files
       3 rename ``e{epoch}`` to ``epoch={epoch}``: the whole epoch becomes visible; check again
E7     remove staged files of the epoch that no handle names
R1     after a rollback: the folder passes to the new branch; staged files of other branches are
       removed; their visible epochs stay, or are moved aside
=====  ======================================================================================

The sink does not trust the result of a call. A successful upload may be incomplete, and a failed one may leave a
closed, shorter file that appears intact. A rename that reported an error may have succeeded: its response may have been
lost, and a repetition then finds no file to rename. The state of the namespace decides. A file is identified by its
length and its file id, which renames preserve. A file that an administrator has restored from a copy has another id,
and is identified by its content."""

from __future__ import annotations

import hashlib
import posixpath
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from epochal.backends.epoch_folders import (
    ASIDE,
    OWNER_FILE,
    STAGING,
    FolderOwner,
    check_columns,
    check_complete,
    check_not_ahead,
    check_owner,
    check_unowned,
    gathering_folder,
    is_swept,
    is_visible,
    shown_epochs,
    shown_folder,
    staged_files,
    to_move_aside,
    to_move_back,
)
from epochal.backends.file_formats import WRITERS
from epochal.backends.hdfs.client import ANSWERS, FileStatus, WebHdfs, translated
from epochal.backends.hdfs.transaction import HdfsFile, HdfsTransaction, hdfs_files
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.catalog import Succession
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import OptionError, SinkError
from epochal.faults import declare

GATHERING = declare("E5.hdfs.gathering", "the epoch's folder does not exist; its staged files are about to be gathered")
GATHERED_ONE = declare("E5.hdfs.gathered-one", "one staged file of the epoch has been moved to its gathering folder")
GATHERED = declare("E5.hdfs.gathered", "all files of the epoch are gathered and checked, none is visible")
RENAMED = declare("E5.hdfs.renamed", "the epoch's folder is visible, not yet verified")
CLAIMED = declare("R1.hdfs.claimed", "the folder's owner is written")
INHERITED = declare("R1.hdfs.inherited", "the folder has passed to the branch of a rollback")
MOVED_ASIDE = declare("R1.hdfs.moved-aside", "one epoch that a rollback left behind is no longer visible")
MOVED_BACK = declare("R1.hdfs.moved-back", "one epoch that an earlier rollback moved aside is visible again")

_PIECE = 4 * 1024 * 1024


class HdfsBackend(SinkBackend):
    """Sink backend of ``hdfs.sink``. ``path`` is absolute; ``format`` is parquet, json (lines) or csv."""

    def __init__(self, place: SinkPlace, hdfs: WebHdfs, path: str, format: str = "parquet") -> None:
        if format not in WRITERS:
            raise OptionError(f"The HDFS sink cannot write {format!r}; formats are {', '.join(WRITERS)}.")
        self._hdfs = hdfs
        self._path = path
        self._format = format
        self._subject = f"Sink {place.sink!r} ({self.target})"

    @property
    def kind(self) -> str:
        return "hdfs"

    @property
    def target(self) -> str:
        return f"hdfs:{self._hdfs.address.authority}{self._path}"

    def check(self, schema: pa.Schema) -> None:
        check_columns(self._subject, self._format, schema)

    def succeed(self, epoch: EpochScope, succession: Succession) -> None:
        with self._translated("take over"):
            if not self._inherit(epoch, succession):
                return
            for branch in succession.branches:
                # Decided epochs are committed; other staged files of another branch must not become visible.
                self._hdfs.delete_folder(self._staging(branch))
            self._rearrange(succession)

    def recover(self, epoch: EpochScope) -> None:
        with self._translated("take over"):
            found = self._hdfs.status(self._path)
            if found is None:
                self._hdfs.make_folder(self._path)
            elif not found.is_folder:
                raise SinkError(f"{self._subject}: {self._path} is a file. Use a folder.")
            self._hdfs.check_access(self._path, "rwx")
            names = self._hdfs.list(self._path)
            owner = self._claim(epoch, names)
            CLAIMED.hit(epoch.epoch)
            check_not_ahead(self._subject, names, epoch, owner)

    def shown(self, epoch: EpochScope) -> int | None:
        with self._translated("look what is shown"):
            there = self._hdfs.status(self._path)
            return 0 if there is None else max(shown_epochs(self._hdfs.list(self._path)), default=0)

    def start(self, task: TaskScope) -> HdfsTransaction:
        return HdfsTransaction(self._hdfs, self._staging(task.epoch.branch), self._format, task, self._subject)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        files = hdfs_files(handles)
        if not files:
            return
        final = posixpath.join(self._path, shown_folder(epoch.epoch))
        with self._translated(f"commit epoch {epoch.epoch}"):
            if self._hdfs.status(final) is None:
                try:
                    self._publish(epoch, files, final)
                except ANSWERS:
                    if self._hdfs.status(final) is None:
                        raise
            self._check(final, self._hdfs.list(final), files)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        staging = self._staging(epoch.branch)
        gathered = posixpath.join(staging, gathering_folder(epoch.epoch))
        with self._translated(f"abort epoch {epoch.epoch}"):
            # Files of an epoch that an administrator gave up may have been gathered already.
            half_way = self._hdfs.list(gathered)
            for file in staged_files(handles):
                self._hdfs.delete(posixpath.join(staging, file.staged))
                if file.final in half_way:
                    self._hdfs.delete(posixpath.join(gathered, file.final))

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        kept = {file.staged for file in staged_files(keep)}
        removed = 0
        staging = self._staging(epoch.branch)
        with self._translated(f"sweep epoch {epoch.epoch}"):
            there = self._hdfs.list(staging)
            for name in there:
                if is_swept(name, epoch) and name not in kept:
                    removed += self._hdfs.delete(posixpath.join(staging, name))
            # A fenced driver may have recreated the folder after its epoch was renamed. With files, it is incomplete.
            gathered = posixpath.join(staging, gathering_folder(epoch.epoch))
            if gathering_folder(epoch.epoch) in there and not self._hdfs.list(gathered):
                self._hdfs.delete(gathered)
        return removed

    def _publish(self, epoch: EpochScope, files: Sequence[HdfsFile], final: str) -> None:
        """E5.2 and E5.3. Another process may run the same steps; the later one finds the work done."""
        gathered = posixpath.join(self._staging(epoch.branch), gathering_folder(epoch.epoch))
        GATHERING.hit(epoch.epoch)
        self._hdfs.make_folder(gathered)
        if not self._gather(epoch, files, gathered):
            if self._hdfs.status(final) is None:
                self._complain(epoch, files, gathered)
            return
        GATHERED.hit(epoch.epoch)
        self._move(gathered, final)
        RENAMED.hit(epoch.epoch)

    def _gather(self, epoch: EpochScope, files: Sequence[HdfsFile], gathered: str) -> bool:
        """Move the files to the gathering folder; return whether it holds all of them and no other file."""
        staging = self._staging(epoch.branch)
        staged_there, there = self._hdfs.list(staging), self._hdfs.list(gathered)
        for file in files:
            staged = staged_there.get(file.staged)
            if file.final not in there and staged is not None and self._is_same(staged, file):
                self._move(posixpath.join(staging, file.staged), posixpath.join(gathered, file.final))
            GATHERED_ONE.hit(epoch.epoch)
        there = self._hdfs.list(gathered)
        return there.keys() == {file.final for file in files} and all(
            self._is_same(there[file.final], file) for file in files
        )

    def _move(self, source: str, destination: str) -> None:
        """Rename. After an error the namespace decides; the caller checks it in any case."""
        try:
            self._hdfs.move(source, destination)
        except ANSWERS:
            if self._hdfs.status(destination) is None:
                raise

    def _complain(self, epoch: EpochScope, files: Sequence[HdfsFile], gathered: str) -> None:
        staging = self._staging(epoch.branch)
        for file in files:
            place = posixpath.join(gathered, file.final)
            for path in (place, posixpath.join(staging, file.staged)):
                found = self._hdfs.status(path)
                if found is not None and self._is_same(found, file):
                    break
            else:
                raise SinkError(
                    f"{self._subject} has lost {posixpath.join(staging, file.staged)}, a part of epoch {epoch.epoch}: "
                    f"it is missing or has changed ({file.length} bytes, sha256 {file.sha256}). Restore it from a "
                    "copy; the commit is retried."
                )
        raise SinkError(
            f"{self._subject}: {gathered} holds files that are not of epoch {epoch.epoch}. Another program has "
            "written there: move those files away; the commit is retried."
        )

    def _check(self, folder: str, there: Mapping[str, FileStatus], files: Sequence[HdfsFile]) -> None:
        expected = {file.final: file for file in files}
        # A file of the right length that is not the one of the handle counts as one of another length.
        lengths = {
            name: found.length if name not in expected or self._is_same(found, expected[name]) else -1
            for name, found in there.items()
            if is_visible(name)
        }
        check_complete(f"{self._subject}: {folder}", lengths, {file.final: file.length for file in files})

    def _is_same(self, found: FileStatus, file: HdfsFile) -> bool:
        if found.is_folder or found.length != file.length:
            return False
        if found.file_id == file.file_id:
            return True
        digest = hashlib.sha256()
        for piece in self._hdfs.pieces(found.path, _PIECE):
            digest.update(piece)
        return digest.hexdigest() == file.sha256

    def _inherit(self, epoch: EpochScope, succession: Succession) -> bool:
        """Return whether the folder belongs to this branch, after taking it over from an earlier branch if
        necessary."""
        path, mine = posixpath.join(self._path, OWNER_FILE), FolderOwner.of(epoch, succession)
        if self._hdfs.status(path) is None:
            return False
        owner = FolderOwner.decode(self._hdfs.read(path))
        if owner.application != mine.application or owner.branch not in (mine.branch, *succession.branches):
            return False
        if not owner.is_same(mine):
            draft = f"{path}.{uuid.uuid4().hex}"
            self._hdfs.create(draft, mine.encode().encode())
            self._hdfs.replace(draft, path)
            INHERITED.hit(epoch.epoch)
        return True

    def _rearrange(self, succession: Succession) -> None:
        aside = posixpath.join(self._path, ASIDE)
        leaving = to_move_aside(self._hdfs.list(self._path), succession)
        if leaving:
            self._hdfs.make_folder(aside)
        for name in leaving:
            self._move(posixpath.join(self._path, name), posixpath.join(aside, name))
            MOVED_ASIDE.hit()
        for name in to_move_back(self._hdfs.list(aside), succession):
            self._move(posixpath.join(aside, name), posixpath.join(self._path, name))
            MOVED_BACK.hit()

    def _claim(self, epoch: EpochScope, names: Mapping[str, FileStatus]) -> FolderOwner:
        """Write the owner's file, or check that it names this application and branch."""
        where, mine = f"{self._subject}: its folder", FolderOwner.of(epoch)
        path = posixpath.join(self._path, OWNER_FILE)
        if OWNER_FILE not in names:
            check_unowned(where, names)
            # Atomic, and only if no other sink has created it: a draft, and a rename that does not overwrite.
            draft = f"{path}.{uuid.uuid4().hex}"
            self._hdfs.create(draft, mine.encode().encode())
            try:
                self._move(draft, path)
            finally:
                self._hdfs.delete(draft)
        owner = FolderOwner.decode(self._hdfs.read(path))
        check_owner(where, owner, mine)
        for name in names:
            if name.startswith(f"{OWNER_FILE}."):  # the draft of a process that died, or whose answer was lost
                self._hdfs.delete(posixpath.join(self._path, name))
        return owner

    def _staging(self, branch: str) -> str:
        return posixpath.join(self._path, STAGING, branch)

    def _translated(self, what: str) -> AbstractContextManager[None]:
        return translated(self._subject, what)
