"""Restoring a backup: a new incarnation of the installation, in an empty catalog and in an empty or partial store.

=====  ================================================================================================
step   what
=====  ================================================================================================
A1     the backup is complete; the catalog is empty; the store has no owner, or belongs to the
       backed-up catalog, and is not in use
A2     the store is assigned to the new incarnation and marked as being restored: nothing starts on
       it before the end
A3     files that the store lacks are copied
A4     one transaction: all rows, the changes for a new incarnation, and decided epochs that are in
       the store but not in the backup
A5     the admin token is written to its file; the mark is removed
=====  ================================================================================================

After an interruption, the same command continues: before A4 with missing files, after it with A5.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from epochal.errors import Conflict, FileCorrupt, FileMissing
from epochal.faults import declare
from epochal.service.catalog.backups import check_loadable, load_backup, restored_from
from epochal.service.catalog.database import Database
from epochal.service.catalog.lineage_bounds import SessionLineages
from epochal.service.catalog.post_restore import Incarnation, IncarnationRepository
from epochal.service.catalog.tokens import AdminTokenFile, ensure_admin_token
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.secrets import UserToken
from epochal.service.domain.settings import Settings
from epochal.service.runtime.newer_epochs import newer_epochs, unknown_branches
from epochal.service.runtime.store_claim import check_writable
from epochal.snapshots.backup_format import BackupFile, Backups
from epochal.snapshots.copying import ToCopy, check_all, copy_all
from epochal.snapshots.lineage_bounds import LineageStore
from epochal.snapshots.ownership import StoreOwner, give_to, owner_of
from epochal.snapshots.store import SnapshotStore

A2_GIVEN = declare("A2.given", "the store belongs to the restored catalog, which does not exist yet")
A3_COPIED = declare("A3.file-copied", "one file is in the store again, others are not")
A4_LOADED = declare("A4.loaded", "the restored catalog is in an uncommitted transaction")
A4_LANDED = declare("A4.landed", "the restored catalog exists; its admin token and its store do not record it yet")

QUIET_SECONDS = 30.0
"""A store with more recent writes counts as in use."""


@dataclass(frozen=True)
class RestoredApplication:
    """``epoch``: the epoch of its state. ``newer``: number of its epochs that are from after the backup, read from
    the store. ``unknown_code``: artifacts of these that the restored catalog does not have."""

    name: str
    branch: str
    epoch: int | None
    newer: int
    ran: bool
    started: bool
    unknown_code: tuple[str, ...] = ()


@dataclass(frozen=True)
class RestoreReport:
    """``unknown_branches``: branches of the store, by application, created after the backup. ``resumed``: only the
    end of an earlier restore was missing."""

    backup: str
    incarnation: str
    copied_files: int
    copied_bytes: int
    applications: tuple[RestoredApplication, ...]
    unknown_branches: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]
    resumed: bool = False


class Restore:
    """``start``: restart applications that ran at the time of the backup. ``quick``: accept existing files of the
    store by their sizes."""

    def __init__(
        self,
        settings: Settings,
        backups: Backups,
        id: str | None = None,
        *,
        start: bool = False,
        quick: bool = False,
        quiet_seconds: float = QUIET_SECONDS,
        progress: Callable[[str], None] = lambda said: None,
    ) -> None:
        self._settings = settings
        self._backups = backups
        self._index = backups.index(id)
        self._start = start
        self._quick = quick
        self._quiet_seconds = quiet_seconds
        self._progress = progress
        self._store = SnapshotStore(settings.store_url)
        self._source = f"{self._index.id} ({backups.place.url})"

    def run(self) -> RestoreReport:
        """Raises ``Conflict`` for a catalog or store that is in use or not empty, ``FileMissing`` or ``FileCorrupt``
        for an incomplete backup, ``CatalogVersion`` for one of a later version, ``EnvironmentProblem``."""
        check_writable(self._store)
        database = Database(self._settings.database_url)
        try:
            owner = owner_of(self._store)
            if owner is not None and owner.restoring == self._index.id and owner.incarnation == restored_from(database):
                return self._finish(database, owner)
            check_loadable(database, self._index)
            self._check_store(owner)
            listed = self._listed()
            owner = self._take(owner)
            A2_GIVEN.hit()
            copied, copied_bytes = self._copy(listed)
            report = self._load(database, owner, copied, copied_bytes)
            A4_LANDED.hit()
            self._finish(database, owner)
            return report
        finally:
            database.close()

    def _check_store(self, owner: StoreOwner | None) -> None:
        index, url = self._index, self._store.url
        entries = self._store.entries()
        if owner is None:
            if entries:
                raise Conflict(
                    f"The store {url} contains {len(entries)} files without an owner. Restore into an empty store, or "
                    "into the one of the backup."
                )
            return
        if owner.installation != index.installation:
            raise Conflict(
                f"The store {url} belongs to another catalog: {owner.catalog}. Restore into an empty store (--store)."
            )
        if owner.moved_to is not None:
            raise Conflict(
                f"The store {url} was replaced by {owner.moved_to} (`epochal store copy`). Restore into that store, or "
                "into an empty one."
            )
        if owner.copied_from is not None:
            raise Conflict(
                f"The store {url} is an incomplete copy of {owner.copied_from}. Restore into that store, or into an "
                "empty one."
            )
        if owner.restoring is not None and owner.restoring != index.id:
            raise Conflict(
                f"An unfinished restore of backup {owner.restoring} occupies the store {url}. Restore the same backup "
                "again (--backup), or use an empty store."
            )
        if owner.restoring is None and index.incarnation not in (owner.incarnation, *owner.earlier):
            raise Conflict(
                f"The store {url} belongs to a catalog that was restored on {owner.since:%Y-%m-%d %H:%M} UTC, after "
                "this backup was created. Use a later backup, or an empty store."
            )
        moment = now()
        ours = {file.path for file in self._backups.listed(index)}
        for entry in entries:
            young = entry.written_at is not None and moment - entry.written_at < timedelta(seconds=self._quiet_seconds)
            if young and not (owner.restoring is not None and entry.path in ours):
                raise Conflict(
                    f"The store {url} is in use: {entry.path} was written at {entry.written_at:%H:%M:%S} UTC. Stop "
                    f"its control planes and drivers, and restore {self._quiet_seconds:.0f} s later."
                )

    def _listed(self) -> list[BackupFile]:
        """All files of the backup. Raises ``FileMissing``, ``FileCorrupt`` before anything is changed."""
        listed = self._backups.listed(self._index)
        for file, problem in check_all(self._backups.files, _sizes(self._backups.files), listed, True, self._progress):
            raise FileCorrupt(
                f"The backup {self._source} is incomplete: {file.path}: {problem}. `epochal backup verify` lists all "
                "problems; restore another backup."
            )
        return listed

    def _take(self, owner: StoreOwner | None) -> StoreOwner:
        if owner is not None and owner.restoring is not None:
            return owner
        database = Database(self._settings.database_url)
        taken = StoreOwner(
            installation=self._index.installation,
            incarnation=new_id(),
            catalog=database.place,
            since=now(),
            restoring=self._index.id,
        )
        database.close()
        give_to(self._store, taken)
        return taken

    def _copy(self, listed: list[BackupFile]) -> tuple[int, int]:
        """Copy missing files of the backup into the store. Returns their number and their total size."""
        there = self._there(listed)
        wishes = [ToCopy(file.path, file.sha256, file.bytes) for file in listed]
        done = copy_all(self._backups.files, self._store, wishes, there, self._progress, A3_COPIED)
        if done.problems:
            raise FileMissing(f"The backup {self._source} is incomplete: {done.problems[0]}")
        return done.copied, done.copied_bytes

    def _there(self, files: list[BackupFile]) -> dict[str, BackupFile]:
        sizes = _sizes(self._store)
        there = {file.path: file for file in files if sizes.get(file.path) == file.bytes}
        for file, _ in check_all(self._store, sizes, list(there.values()), self._quick, self._progress):
            del there[file.path]
        return there

    def _load(self, database: Database, owner: StoreOwner, copied: int, copied_bytes: int) -> RestoreReport:
        moment = now()
        token, file = UserToken.make(new_id()), AdminTokenFile(self._settings.admin_token_file)
        # Replicas of the same branches may have epochs that will be repeated with other content.
        shutil.rmtree(self._settings.replicas_directory, ignore_errors=True)
        self._progress("loading the catalog")
        with database.migrating() as session:
            load_backup(session, self._backups, self._index)
            incarnation = Incarnation(owner.incarnation, self._source, self._store.url, moment)
            repository = IncarnationRepository(session, incarnation)
            applications = []
            standings = repository.begin(token)
            strange = tuple(unknown_branches(self._store, repository.branches(), self._store.list("")))
            moved = {application for _, application in strange}
            within = LineageStore(self._store.url, SessionLineages(session))
            for standing in standings:
                chain = newer_epochs(within, standing.branch, standing.head)
                repository.go_on_to(standing.branch, chain)
                head = chain[-1][0] if chain else standing.head
                code = sorted(
                    {manifest.artifact for _, manifest in chain if not repository.uses_artifact(manifest.artifact)}
                )
                applications.append(
                    RestoredApplication(
                        name=standing.name,
                        branch=standing.branch,
                        epoch=None if head is None else head.epoch,
                        newer=len(chain),
                        ran=standing.ran,
                        started=self._start and standing.ran and not code and standing.name not in moved,
                        unknown_code=tuple(code),
                    )
                )
            repository.start([application.name for application in applications if application.started])
            A4_LOADED.hit()
            file.prepare(token)
        return RestoreReport(
            backup=self._index.id,
            incarnation=owner.incarnation,
            copied_files=copied,
            copied_bytes=copied_bytes,
            applications=tuple(applications),
            unknown_branches=strange,
            problems=self._index.problems,
        )

    def _finish(self, database: Database, owner: StoreOwner) -> RestoreReport:
        """Idempotent."""
        ensure_admin_token(database, self._settings.admin_token_file)
        give_to(self._store, owner.completed())
        return RestoreReport(self._index.id, owner.incarnation, 0, 0, (), (), self._index.problems, resumed=True)


def _sizes(store: SnapshotStore) -> dict[str, int]:
    return {entry.path: entry.bytes for entry in store.entries()}
