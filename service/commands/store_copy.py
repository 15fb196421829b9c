"""Moving an installation to another store: a copy of every file that the catalog needs, then the switch.

=====  ================================================================================================
step   what
=====  ================================================================================================
M1     no control plane, query node or driver uses the store; the lease of the leader is held until the
       end, so that none begins to; the target is empty, or an incomplete copy of the same store
M2     the target is assigned to a new incarnation of the installation and marked as a copy: nothing
       starts on it
M3     files that the target lacks are copied
M4     one transaction: the catalog has the new incarnation, and its store is the target
M5     the old store is marked as replaced, and the mark of the target is removed
=====  ================================================================================================

Before M4 the installation uses the old store, whatever happens to the copy; from M4 on, the new one. After an
interruption, the same command continues: before M4 with missing files, after it with M5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from epochal.errors import (
    Conflict,
    EnvironmentProblem,
    EpochalError,
    FileMissing,
    InvalidInput,
    SnapshotError,
)
from epochal.faults import declare
from epochal.service.catalog.database import Database
from epochal.service.catalog.lineage_bounds import CatalogLineages
from epochal.service.catalog.migration import check_current
from epochal.service.catalog.store_moves import StoreContents, StoreMoveRepository
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.leases import LeaseSettings
from epochal.service.domain.nodes import Node
from epochal.service.domain.ports import Leadership
from epochal.service.domain.settings import Settings
from epochal.service.runtime.launchers.processes import LocalProcess
from epochal.service.runtime.leadership import leadership_of
from epochal.service.runtime.machine import this_machine
from epochal.service.runtime.store_claim import check_store, check_writable
from epochal.snapshots import layout
from epochal.snapshots.backup_format import BackupFile
from epochal.snapshots.copying import ToCopy, check_all, copy_all
from epochal.snapshots.lineage_bounds import LineageStore
from epochal.snapshots.ownership import StoreOwner, give_new, give_to, owner_of
from epochal.snapshots.references import References
from epochal.snapshots.store import SnapshotStore

M2_MARKED = declare("M2.marked", "the new store is marked as a copy, and is empty")
M3_COPIED = declare("M3.file-copied", "one file is in the new store, others are not")
M4_SWITCHED = declare("M4.switched", "the catalog names the new store in an uncommitted transaction")
M4_LANDED = declare("M4.landed", "the catalog names the new store, which is still marked as a copy")
M5_REPLACED = declare("M5.replaced", "the old store is marked as replaced, the new one still as a copy")

_SAME_SCHEMES = {"s3a": "s3", "gcs": "gs"}


@dataclass(frozen=True)
class StoreCopyReport:
    """``files``, ``bytes``: all that the new store contains. ``resumed``: only the end of an earlier copy was missing.
    ``unmarked``: why the old store could not be marked as replaced."""

    source: str
    target: str
    files: int
    bytes: int
    copied_files: int
    copied_bytes: int
    resumed: bool = False
    unmarked: str | None = None


class StoreCopy:
    """Copy the store of an installation into ``target``, and switch the installation to it."""

    def __init__(self, settings: Settings, target: str, *, progress: Callable[[str], None] = lambda said: None) -> None:
        """``settings``: those of the installation, with the present store."""
        self._settings = settings
        self._target = SnapshotStore(target)
        self._progress = progress

    def run(self) -> StoreCopyReport:
        """Raises ``Conflict`` if the installation is in use, the store is not its own, or the target is not empty;
        ``InvalidInput`` for a target within the store; ``FileMissing`` if files of the store are missing or damaged;
        ``StoreUnavailable``, ``EnvironmentProblem``, ``CatalogUnavailable``. The installation then uses the old
        store."""
        if self._settings.database is None and not (self._settings.data / "catalog.sqlite").exists():
            raise EnvironmentProblem(
                f"There is no catalog in {self._settings.data}. Name the data directory with --home, or the catalog "
                "with --database-url (or EPOCHAL_DATABASE_URL)."
            )
        database = Database(self._settings.database_url)
        try:
            check_current(database)
            with _leading(self._settings) as leadership:
                with database.reading() as session:
                    repository = StoreMoveRepository(session)
                    repository.check_unused(_has_terminated)
                    row = repository.installation()
                owner = owner_of(self._target)
                if owner is not None and owner.incarnation == row.incarnation and row.store == self._target.url:
                    return self._finish(owner, StoreCopyReport(row.store, self._target.url, 0, 0, 0, 0, resumed=True))
                return self._copy_and_switch(database, leadership, owner)
        finally:
            database.close()

    def _copy_and_switch(self, database: Database, leadership: Leadership, owner: StoreOwner | None) -> StoreCopyReport:
        source = LineageStore(self._settings.store_url, CatalogLineages(database))
        check_store_apart(source.url, self._target.url)
        check_store(database, source)
        before = owner_of(source)
        if before is None:
            raise Conflict(f"The store {source.url} has no owner. Start a control plane on it first.")
        if before.is_incomplete:
            raise Conflict(f"The store {source.url} is incomplete. Complete it first: start a control plane on it.")
        self._check_target(source, before, owner)
        check_writable(self._target)
        owner = owner or self._mark(source, before)
        M2_MARKED.hit()
        with database.reading_one_moment() as session:
            contents = StoreMoveRepository(session).contents()
        report = self._copy(source, contents)
        with database.writing() as session:
            StoreMoveRepository(session).switch(self._target.url, owner.incarnation, contents, _has_terminated)
            if leadership.leading() is None:
                raise Conflict("Another process has taken over the lease of the leader. Repeat the command.")
            M4_SWITCHED.hit()
        M4_LANDED.hit()
        return self._finish(owner, report)

    def _check_target(self, source: SnapshotStore, before: StoreOwner, owner: StoreOwner | None) -> None:
        url = self._target.url
        if owner is None:
            if others := len(self._target.entries()):
                raise Conflict(f"The store {url} contains {others} files without an owner. Copy into an empty one.")
            return
        if owner.installation != before.installation:
            raise Conflict(
                f"The store {url} belongs to another catalog: {owner.catalog}, since {owner.since:%Y-%m-%d %H:%M} UTC. "
                "Copy into an empty store."
            )
        if owner.copied_from is None:
            raise Conflict(
                f"The store {url} was used by this installation before, and is not a copy of {source.url}. Copy into "
                "an empty store."
            )
        if owner.copied_from != source.url or before.incarnation not in owner.earlier:
            raise Conflict(
                f"The store {url} is an incomplete copy of {owner.copied_from}, not of the present store {source.url}. "
                "Delete its files, or copy into an empty store."
            )

    def _mark(self, source: SnapshotStore, before: StoreOwner) -> StoreOwner:
        owner = StoreOwner(
            installation=before.installation,
            incarnation=new_id(),
            catalog=before.catalog,
            since=now(),
            copied_from=source.url,
            earlier=(*before.earlier, before.incarnation),
        )
        if not give_new(self._target, owner):
            raise Conflict(f"Another process has just claimed the store {self._target.url}. Repeat the command.")
        return owner

    def _copy(self, source: SnapshotStore, contents: StoreContents) -> StoreCopyReport:
        """Copy what the target lacks. One listing of each store shows what that is."""
        self._progress("listing the stores")
        there, here = _sizes(source), _sizes(self._target)
        files = [_sized(file, there) for file in self._needed(source, contents, there)]
        # Files of an incomplete copy were written by this command, which has compared their checksums.
        known = {
            file.path: BackupFile(file.path, file.bytes, file.sha256 or "")
            for file in files
            if file.bytes is not None and here.get(file.path) == file.bytes
        }
        done = copy_all(source, self._target, files, known, self._progress, M3_COPIED)
        _check_whole(done.problems, source)
        self._progress("comparing sizes")
        wrong = check_all(self._target, _sizes(self._target), done.files, True, lambda said: None)
        for file, problem in wrong:
            raise SnapshotError(f"{self._target.location(file.path)} was copied: {problem}. Repeat the command.")
        return StoreCopyReport(
            source.url,
            self._target.url,
            files=len(done.files),
            bytes=sum(file.bytes for file in done.files),
            copied_files=done.copied,
            copied_bytes=done.copied_bytes,
        )

    def _needed(self, source: SnapshotStore, contents: StoreContents, there: dict[str, int]) -> list[ToCopy]:
        """All files that the catalog needs."""
        references, needed, problems = References(source), dict[str, ToCopy](), list[str]()
        for number, (key, reference) in enumerate(contents.kept.items(), 1):
            try:
                files = references.files(reference)
            except SnapshotError as error:
                problems.append(f"Snapshot {key} cannot be read: {error.message}")
            else:
                needed.update((file.path, ToCopy.of(file)) for file in files.values())
            self._progress(f"{number} of {len(contents.kept)} snapshots read")
        _check_whole(problems, source)
        for named in contents.named.values():
            # Only code is needed for good; logs and bundles expire.
            needed[named.path] = ToCopy(named.path, named.sha256, named.bytes, may_vanish=named.sha256 is None)
        undone = {(key.branch, key.epoch) for key in contents.prepared}
        for path in there:
            place = layout.place_of(path)
            if place is not None and place.kind == "log" and place.finished and (place.branch, place.epoch) in undone:
                needed[path] = ToCopy(path)
        return list(needed.values())

    def _finish(self, owner: StoreOwner, report: StoreCopyReport) -> StoreCopyReport:
        """Idempotent."""
        if owner.copied_from is None:
            return report
        unmarked = _replaced(SnapshotStore(owner.copied_from), owner, self._target.url)
        M5_REPLACED.hit()
        give_to(self._target, owner.completed())
        return StoreCopyReport(**{**vars(report), "source": owner.copied_from, "unmarked": unmarked})


def check_store_apart(source: str, target: str) -> None:
    """Raise ``InvalidInput`` if one store contains the other."""
    one, other = f"{_normalised(source)}/", f"{_normalised(target)}/"
    if one.startswith(other) or other.startswith(one):
        raise InvalidInput(f"The stores {source} and {target} overlap. Copy into a store outside of the present one.")


def _normalised(url: str) -> str:
    store = SnapshotStore(url)
    if store.is_near:
        return str(store.real_folder)
    scheme, _, rest = store.url.partition("://")
    return f"{_SAME_SCHEMES.get(scheme, scheme)}://{rest}"


def _replaced(source: SnapshotStore, owner: StoreOwner, target: str) -> str | None:
    """Mark the old store. The catalog refuses it in any case, so that it may be away or read-only. Returns why it
    could not be marked."""
    try:
        before = owner_of(source)
        if before is not None and before.incarnation in owner.earlier and before.moved_to is None:
            give_to(source, before.model_copy(update={"moved_to": target}))
    except EpochalError as error:
        return error.message
    return None


def _check_whole(problems: Sequence[str], source: SnapshotStore) -> None:
    if problems:
        more = f" {len(problems) - 1} more files are missing or damaged." if len(problems) > 1 else ""
        raise FileMissing(
            f"The store {source.url} is damaged and stays in use: {problems[0]}{more} `epochal verify --repair` lists "
            "all of them and repairs some; delete savepoints that need the others, or let them expire."
        )


def _sizes(store: SnapshotStore) -> dict[str, int]:
    return {entry.path: entry.bytes for entry in store.entries()}


def _sized(file: ToCopy, sizes: dict[str, int]) -> ToCopy:
    """The size of a manifest or of a log is that of the file, which is written once."""
    return file if file.bytes is not None else ToCopy(file.path, file.sha256, sizes.get(file.path), file.may_vanish)


@contextmanager
def _leading(settings: Settings) -> Iterator[Leadership]:
    """Hold the lease of the leader, so that no control plane starts drivers."""
    leadership = leadership_of(settings)
    leadership.open()
    try:
        if leadership.leading() is None:
            raise Conflict(
                "A control plane leads this installation. Stop all control planes; if it was killed on another "
                f"machine, repeat the command {LeaseSettings().lease_seconds:.0f} s later."
            )
        yield leadership
    finally:
        leadership.close()


def _has_terminated(node: Node) -> bool:
    here = this_machine()
    return (node.host, node.boot) == (here.host, here.boot) and LocalProcess.find(node.process) is None
