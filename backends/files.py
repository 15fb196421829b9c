"""The files sink: each epoch becomes visible as one folder, by one atomic rename.

Layout: :mod:`epochal.backends.epoch_folders`, on a local or mounted file system that driver and executors share.
Spark, Hive and others skip names that start with ``_``, and read the folder's name as a column ``epoch``.

=====  ======================================================================================
step   what
=====  ======================================================================================
T1     nothing; the file is opened with the first row
T2     rows go to a staged file of this task attempt
T3     file closed, fsynced, folder fsynced; handle: staged name, final name, length, sha256
E5     1 if the epoch's folder exists, it must hold exactly the handles' files: done
       2 gather the staged files in ``e{epoch}``; existing files stay 3 rename ``e{epoch}`` to ``epoch={epoch}``: the
       whole epoch becomes visible
E7     remove staged files of the epoch that no handle names
R1     after a rollback: the folder passes to the new branch; staged files of other branches are
       removed; their visible epochs stay, or are moved aside
=====  ======================================================================================

After an error the state of the folders decides, never the error: a completed step is not repeated.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from epochal.backends.epoch_folders import (
    ASIDE,
    OWNER_FILE,
    STAGING,
    FolderOwner,
    StagedFile,
    check_columns,
    check_complete,
    check_not_ahead,
    check_owner,
    check_unowned,
    gathering_folder,
    is_swept,
    shown_epochs,
    shown_folder,
    staged_files,
    to_move_aside,
    to_move_back,
)
from epochal.backends.file_formats import WRITERS
from epochal.backends.staged_files import FilesTransaction, is_whole, synchronise, translated
from epochal.contracts.backend import SinkBackend
from epochal.contracts.catalog import Succession
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import OptionError, SinkError
from epochal.faults import declare
from epochal.pipeline.definitions import local_path

GATHERING = declare(
    "E5.files.gathering", "the epoch's folder does not exist; its staged files are about to be gathered"
)
GATHERED_ONE = declare("E5.files.gathered-one", "one staged file of the epoch has been gathered")
GATHERED = declare("E5.files.gathered", "all files of the epoch are gathered and durable, none is visible")
RENAMED = declare("E5.files.renamed", "the epoch's folder is visible, its rename perhaps not durable")
INHERITED = declare("R1.files.inherited", "the folder has passed to the branch of a rollback")
MOVED_ASIDE = declare("R1.files.moved-aside", "one epoch that a rollback left behind is no longer visible")
MOVED_BACK = declare("R1.files.moved-back", "one epoch that an earlier rollback moved aside is visible again")


class FilesBackend(SinkBackend):
    """Sink backend of ``files.sink``. ``format`` is parquet, json (lines) or csv."""

    def __init__(self, path: str, format: str = "parquet") -> None:
        if format not in WRITERS:
            raise OptionError(f"The files sink cannot write {format!r}; formats are {', '.join(WRITERS)}.")
        self._path = local_folder(path)
        self._format = format

    @property
    def kind(self) -> str:
        return "files"

    @property
    def target(self) -> str:
        return f"files:{os.path.realpath(self._path)}"

    def check(self, schema: pa.Schema) -> None:
        check_columns(f"The files sink {self._path}", self._format, schema)

    def succeed(self, epoch: EpochScope, succession: Succession) -> None:
        with translated(self._path, "take over"):
            if not self._inherit(epoch, succession):
                return
            for branch in succession.branches:
                # Decided epochs are committed; other staged files of another branch must not become visible.
                shutil.rmtree(self._staging(branch), ignore_errors=True)
            self._rearrange(succession)

    def recover(self, epoch: EpochScope) -> None:
        with translated(self._path, "take over"):
            self._path.mkdir(parents=True, exist_ok=True)
            owner = self._claim(epoch)
            check_not_ahead(f"The files sink {self._path}", os.listdir(self._path), epoch, owner)

    def shown(self, epoch: EpochScope) -> int | None:
        with translated(self._path, "look what is shown"):
            return max(shown_epochs(os.listdir(self._path)), default=0) if self._path.exists() else 0

    def start(self, task: TaskScope) -> FilesTransaction:
        return FilesTransaction(self._staging(task.epoch.branch), self._format, task)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        files = staged_files(handles)
        if not files:
            return
        final = self._path / shown_folder(epoch.epoch)
        with translated(self._path, f"commit epoch {epoch.epoch}"):
            if not final.exists():
                try:
                    self._publish(epoch, files, final)
                except OSError:
                    if not final.exists():
                        raise
            self._verify(final, files)
            synchronise(self._path)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        staging = self._staging(epoch.branch)
        with translated(self._path, f"abort epoch {epoch.epoch}"):
            # A commit that an administrator gave up may have gathered them already.
            gathered = staging / gathering_folder(epoch.epoch)
            for file in staged_files(handles):
                (staging / file.staged).unlink(missing_ok=True)
                (gathered / file.final).unlink(missing_ok=True)
            _remove_if_empty(gathered)

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        kept = {file.staged for file in staged_files(keep)}
        removed = 0
        staging = self._staging(epoch.branch)
        with translated(self._path, f"sweep epoch {epoch.epoch}"):
            for path in staging.iterdir() if staging.exists() else ():
                if is_swept(path.name, epoch) and path.name not in kept:
                    path.unlink(missing_ok=True)
                    removed += 1
            _remove_if_empty(staging / gathering_folder(epoch.epoch))
        return removed

    def _publish(self, epoch: EpochScope, files: Sequence[StagedFile], final: Path) -> None:
        """E5.2 and E5.3. Another process may run the same steps; the later one finds the work done."""
        staging = self._staging(epoch.branch)
        gathered = staging / gathering_folder(epoch.epoch)
        GATHERING.hit(epoch.epoch)
        gathered.mkdir(parents=True, exist_ok=True)
        for file in files:
            staged, place = staging / file.staged, gathered / file.final
            if is_whole(staged, file.length):
                staged.rename(place)
            elif not is_whole(place, file.length):
                if final.exists():
                    return
                raise SinkError(
                    f"The files sink {self._path} has lost {staged}, a part of epoch {epoch.epoch}: it is missing, or "
                    f"its length is not {file.length} bytes. Restore it from a copy; the commit is retried."
                )
            GATHERED_ONE.hit(epoch.epoch)
        synchronise(gathered)
        GATHERED.hit(epoch.epoch)
        gathered.rename(final)
        RENAMED.hit(epoch.epoch)
        synchronise(staging)

    def _verify(self, final: Path, files: Sequence[StagedFile]) -> None:
        there = {path.name: path.stat().st_size for path in final.iterdir()}
        check_complete(str(final), there, {file.final: file.length for file in files})

    def _claim(self, epoch: EpochScope) -> FolderOwner:
        """Write the owner's file, or check that it names this application and branch."""
        where, mine = f"The files sink's folder {self._path}", FolderOwner.of(epoch)
        owner_file = self._path / OWNER_FILE
        if not owner_file.exists():
            check_unowned(where, os.listdir(self._path))
            self._write_owner(owner_file, mine)
        owner = FolderOwner.decode(owner_file.read_text())
        check_owner(where, owner, mine)
        return owner

    def _inherit(self, epoch: EpochScope, succession: Succession) -> bool:
        """Return whether the folder belongs to this branch, after taking it over from an earlier branch if
        necessary."""
        owner_file, mine = self._path / OWNER_FILE, FolderOwner.of(epoch, succession)
        if not owner_file.exists():
            return False
        owner = FolderOwner.decode(owner_file.read_text())
        if owner.application != mine.application or owner.branch not in (mine.branch, *succession.branches):
            return False
        if not owner.is_same(mine):
            draft = self._draft(owner_file, mine)
            os.replace(draft, owner_file)
            synchronise(self._path)
            INHERITED.hit(epoch.epoch)
        return True

    def _rearrange(self, succession: Succession) -> None:
        aside = self._path / ASIDE
        for name in to_move_aside(os.listdir(self._path), succession):
            aside.mkdir(exist_ok=True)
            (self._path / name).rename(aside / name)
            MOVED_ASIDE.hit()
        for name in to_move_back(os.listdir(aside) if aside.exists() else (), succession):
            (aside / name).rename(self._path / name)
            MOVED_BACK.hit()
        if aside.exists():
            synchronise(aside)
        synchronise(self._path)

    def _write_owner(self, owner_file: Path, owner: FolderOwner) -> None:
        """Create the file atomically, unless it exists."""
        draft = self._draft(owner_file, owner)
        try:
            os.link(draft, owner_file)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        synchronise(self._path)

    @staticmethod
    def _draft(owner_file: Path, owner: FolderOwner) -> Path:
        draft = owner_file.with_name(f"{OWNER_FILE}.{uuid.uuid4().hex}")
        draft.write_text(owner.encode())
        synchronise(draft)
        return draft

    def _staging(self, branch: str) -> Path:
        return self._path / STAGING / branch


def local_folder(path: str) -> Path:
    """The folder that a path or ``file:`` URL names, absolute. Raises ``OptionError`` for other file systems."""
    local = local_path(path)
    if local is None:
        raise OptionError(
            f"The files sink cannot write to {path.partition('://')[0]}: it needs a file system that renames a folder "
            "atomically. Give a local folder, or one that is mounted on the driver and on every executor."
        )
    if not path.strip():
        raise OptionError("The files sink needs a folder: files.sink('out').")
    return Path(os.path.abspath(local))


def _remove_if_empty(folder: Path) -> None:
    """Remove an empty folder: two processes that commit one epoch concurrently may leave their gathering folder."""
    with suppress(FileNotFoundError):
        if not any(folder.iterdir()):
            folder.rmdir()
