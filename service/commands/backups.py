"""Backups: a consistent copy of the catalog, then every file that it references, then the index, which completes the
backup.

No collection begins while the operation runs (``check_store_free``), so referenced files stay. Drivers continue: what
they write later is not in the backup, and what they delete belongs to no decided epoch, except write-ahead logs, which
are deleted when their epoch is committed: then sinks have the rows, and the log is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import epochal
from epochal.addresses import check_location
from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing, NotFound, SnapshotError
from epochal.faults import declare
from epochal.service.catalog.backups import BackedUp, BackupRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.installations import InstallationRepository
from epochal.service.catalog.migration import newest_revision
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.types import now
from epochal.service.domain.settings import Settings
from epochal.service.runtime.operations import OperationWorker, Verb
from epochal.snapshots import layout
from epochal.snapshots.backup_format import (
    BackupFile,
    Backups,
    Index,
    TablePart,
    check_apart,
    problems_of,
)
from epochal.snapshots.backup_maintenance import Pruning, plan_pruning, prune
from epochal.snapshots.copying import Copied, ToCopy, check_all, copy_all
from epochal.snapshots.references import NeededFile, References
from epochal.snapshots.store import SnapshotStore
from epochal.wire.operations import OperationAnswer
from epochal.wire.store import AmountAnswer, Backup, BackupAnswer, BackupName, Prune, PruningAnswer

B1_DUMPED = declare("B1.dumped", "the catalog's tables are in the backup, no file is yet")
B2_COPIED = declare("B2.file-copied", "one file is in the backup, others are not")
B3_LISTED = declare("B3.listed", "everything is in the backup except the index")
B4_INDEXED = declare("B4.indexed", "the backup is complete, its operation still runs")


class BackupService:
    def __init__(self, settings: Settings, database: Database, store: SnapshotStore, worker: OperationWorker) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._worker = worker
        making = Verb("backup", Backup, self._create, self._sweep)
        worker.register("backups", [making, Verb("prune", Prune, self._prune)])

    def create(self, request: Backup, by: str) -> OperationAnswer:
        """Raises ``Conflict`` while files of the store are being deleted, ``InvalidInput`` for a location within it,
        ``OptionError`` for one on a metadata service."""
        check_location("backup", request.to)
        check_apart(self._store.url, SnapshotStore(request.to).url)
        return self._worker.begin("backup", by, lambda session: (None, request))

    def plan_pruning(self, request: Prune) -> PruningAnswer:
        """Raises ``NotFound``, ``OptionError`` as :meth:`create`, and ``Conflict`` if no remaining backup is
        complete."""
        check_location("prune", request.place)
        return _pruned(self._pruning(request, lambda said: None))

    def prune(self, request: Prune, by: str) -> OperationAnswer:
        """Raises ``Conflict`` while a backup is being created, ``OptionError`` as :meth:`create`."""
        check_location("prune", request.place)
        return self._worker.begin("prune", by, lambda session: (None, request))

    def _prune(self, claim: Claim, request: Prune) -> PruningAnswer:
        pruning = self._pruning(request, claim.progress)
        prune(Backups(request.place), pruning, claim.progress)
        return _pruned(pruning)

    def _pruning(self, request: Prune, progress: Callable[[str], None]) -> Pruning:
        backups = Backups(request.place)
        with self._database.reading() as session:
            row = InstallationRepository(session).find()
        try:
            backups.check_of("" if row is None else row.id)
        except FileMissing:
            raise NotFound(f"{backups.place.url} contains no backups.") from None
        seconds = request.older_than_seconds
        before = None if seconds is None else now() - timedelta(seconds=seconds)
        return plan_pruning(backups, request.keep or 1, before, progress)

    def _create(self, claim: Claim, request: Backup) -> BackupAnswer:
        backups = Backups(request.to)
        claim.progress("reading the catalog")
        with self._database.reading_one_moment() as session:
            moment = now()
            repository = BackupRepository(session)
            described = repository.described()
            backups.take(described.installation)
            tables = []
            for table in repository.tables(described.kept, moment):
                claim.check()
                part = backups.write_part(claim.id, f"tables/{table.name}", table.rows)
                tables.append(TablePart(name=table.name, columns=table.columns, part=part))
        B1_DUMPED.hit()
        copied = self._copied(backups, claim, described)
        index = Index(
            id=claim.id,
            installation=described.installation,
            incarnation=described.incarnation,
            revision=newest_revision(),
            version=epochal.__version__,
            catalog=self._database.place,
            store=self._store.url,
            created_at=moment,
            finished_at=now(),
            tables=tuple(tables),
            files=backups.write_part(claim.id, "files", copied.files),
            stored_files=len(copied.files),
            stored_bytes=sum(file.bytes for file in copied.files),
            applications=described.applications,
            problems=problems_of(copied.problems),
        )
        B3_LISTED.hit()
        claim.check()
        backups.write_index(index)
        B4_INDEXED.hit()
        return BackupAnswer(
            id=index.id,
            to=request.to,
            at=index.created_at,
            rows=sum(table.part.lines for table in tables),
            files=AmountAnswer(files=index.stored_files, bytes=index.stored_bytes),
            copied=AmountAnswer(files=copied.copied, bytes=copied.copied_bytes),
            snapshots=len(described.kept),
            problems=list(index.problems),
        )

    def _copied(self, backups: Backups, claim: Claim, described: BackedUp) -> Copied:
        claim.progress("finding the files to copy")
        needed, problems = self._needed(claim, described)
        logs = [ToCopy(path, may_vanish=True) for path in (*self._logs(described.prepared), *described.logs)]
        code = [ToCopy(file.path, file.sha256, file.bytes) for file in described.artifacts]
        files = [*map(ToCopy.of, needed.values()), *code, *logs]
        copied = copy_all(
            self._store, backups.files, files, _known(backups, files, claim.progress), claim.progress, B2_COPIED
        )
        return Copied(
            files=tuple(sorted(copied.files)),
            problems=(*problems, *copied.problems),
            copied=copied.copied,
            copied_bytes=copied.copied_bytes,
        )

    def _needed(self, claim: Claim, described: BackedUp) -> tuple[dict[str, NeededFile], list[str]]:
        """Files that the snapshots need, and the snapshots that could not be read."""
        references = References(self._store)
        needed: dict[str, NeededFile] = {}
        problems: list[str] = []
        for number, (key, reference) in enumerate(described.kept.items()):
            try:
                needed.update(references.files(reference))
            except SnapshotError as error:
                problems.append(f"Snapshot {key} cannot be read: {error}")
            claim.progress(f"{number + 1} of {len(described.kept)} snapshots read")
        return needed, problems

    def _logs(self, prepared: Sequence[EpochKey]) -> Iterator[str]:
        """Write-ahead logs that sinks may still have to apply."""
        undone = {(key.branch, key.epoch) for key in prepared}
        for branch in sorted({key.branch for key in prepared}):
            for path in self._store.list(f"{branch}/{layout.LOGS}"):
                place = layout.place_of(path)
                is_log = place is not None and place.kind == "log" and place.finished
                if place is not None and is_log and (place.branch, place.epoch) in undone:
                    yield path

    def _sweep(self, claim: Claim, request: Backup) -> None:
        Backups(request.to).discard(claim.id)


def _pruned(pruning: Pruning) -> PruningAnswer:
    return PruningAnswer(
        kept=[_named(index) for index in pruning.kept],
        removed=[_named(index) for index in pruning.removed],
        deleted=AmountAnswer(files=len(pruning.files), bytes=pruning.bytes),
    )


def _named(index: Index) -> BackupName:
    files = AmountAnswer(files=index.stored_files, bytes=index.stored_bytes)
    return BackupName(id=index.id, at=index.created_at, files=files)


def _known(backups: Backups, files: Sequence[ToCopy], progress: Callable[[str], None]) -> dict[str, BackupFile]:
    """Existing files: those in the newest backup's list, and those that an interrupted backup copied correctly."""
    sizes = {entry.path: entry.bytes for entry in backups.files.entries()}
    ids = backups.ids()
    listed = backups.listed(backups.index(ids[-1])) if ids else []
    known = {file.path: file for file in listed if sizes.get(file.path) == file.bytes}
    unlisted = [
        BackupFile(file.path, file.bytes, file.sha256)
        for file in files
        if file.path not in known and file.sha256 and file.bytes is not None and sizes.get(file.path) == file.bytes
    ]
    wrong = {file.path for file, _ in check_all(backups.files, sizes, unlisted, False, progress)}
    return known | {file.path: file for file in unlisted if file.path not in wrong}
