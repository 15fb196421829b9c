"""Garbage collection and verification of the store, in the background.

A collection lists, marks, plans again and deletes (G1 to G5). It may end at any step and be repeated. G1 lists the
store. G2 reads the retained snapshots from the catalog, and their manifests. G3 marks expired snapshots as collected,
in one transaction that checks again: from then on they cannot be held. G4 plans with the current catalog
and deletes, manifests first. Snapshots that expired within the grace period are marked and deleted later: they may
still be read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import Conflict, SnapshotError
from epochal.faults import declare
from epochal.service.catalog.database import Database
from epochal.service.catalog.folding import FoldingRepository
from epochal.service.catalog.models import Operation
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.retention import KnownBranch, KnownSnapshots, RetentionRepository
from epochal.service.catalog.types import database_now, now
from epochal.service.commands.artifacts import ArtifactService
from epochal.service.domain.setting_sections import Kept
from epochal.service.domain.settings import Settings
from epochal.service.domain.store_answers import collection_answer, plan_answer, verification_answer
from epochal.service.runtime.housekeeping import Housekeeping
from epochal.service.runtime.operations import OperationWorker, Verb
from epochal.service.runtime.stored_files import StoredFiles
from epochal.snapshots.collection import (
    Amount,
    BranchFacts,
    CollectionPlan,
    Doomed,
    StoreFacts,
    WaitingLimit,
    plan,
)
from epochal.snapshots.references import References
from epochal.snapshots.store import SnapshotStore, StoredFile
from epochal.snapshots.verification import Verification
from epochal.wire.operations import OperationAnswer
from epochal.wire.store import Collect, CollectionAnswer, CollectionPlanAnswer, VerificationAnswer, Verify

log = logging.getLogger("epochal.retention")

BY_ITSELF = "epochal"

_LOOK_SECONDS = 60.0
WRITTEN_FOR_DELTAS = 3
"""Size that an application writes to the store, of that of its deltas: it includes what compactions write."""
LEAST_INTERVAL = timedelta(minutes=5)
"""Minimum time between two periodic collections."""


class CollectionService:
    """Leftovers of an interrupted collection or verification are found by the next one like any other file."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: SnapshotStore,
        files: StoredFiles,
        artifacts: ArtifactService,
        worker: OperationWorker,
        housekeeping: Housekeeping,
    ) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._files = files
        self._artifacts = artifacts
        self._worker = worker
        verbs: list[Verb[Any]] = [Verb("collect", Collect, self._collect), Verb("verify", Verify, self._verify)]
        worker.register("store", verbs)
        self._limit = WaitingLimit(settings.waiting_share) if settings.waiting_share else None
        every_seconds = settings.collect_every_seconds
        if every_seconds is not None:
            self._every = timedelta(seconds=every_seconds)
            self._begun_at = now()
            housekeeping.register("collection", min(_LOOK_SECONDS, every_seconds), self._collect_periodically)

    def plan(self, request: Collect) -> CollectionPlanAnswer:
        """Plan a collection. Changes nothing."""
        return plan_answer(self._collection().plan(self._request(request)))

    def collect(self, request: Collect, by: str) -> OperationAnswer:
        """Raises ``Conflict`` while another operation works on the store."""
        return self._worker.begin("collect", by, lambda session: (None, request))

    def verify(self, request: Verify, by: str) -> OperationAnswer:
        """Raises ``NotFound`` for the application, ``Conflict`` while another operation works on the store."""
        self._roots(request.application)
        return self._worker.begin("verify", by, lambda session: (None, request))

    def _collect_periodically(self) -> bool:
        """Begin a periodic collection, at a fixed interval after the last one of any control plane, or earlier if
        applications have written much since."""
        with self._database.reading() as session:
            at, last = database_now(session), OperationRepository(session).latest("collect")
        since = self._begun_at if last is None else last.created_at
        if at - since >= self._every or (at - since >= LEAST_INTERVAL and self._much_waits(since, last)):
            try:
                self.collect(Collect(), BY_ITSELF)
            except Conflict as conflict:
                log.info("the collection must wait: %s", conflict)
        return False

    def _much_waits(self, since: datetime, last: Operation | None) -> bool:
        """True if more unneeded files than the limit allows may be in the store. Reads only the catalog."""
        if self._limit is None:
            return False
        with self._database.reading() as session:
            written = WRITTEN_FOR_DELTAS * RetentionRepository(session).written_since(since)
        if last is None or last.result is None:
            return not self._limit.allows(written, 0)
        collected = CollectionAnswer.model_validate(last.result)
        return not self._limit.allows(written + collected.waiting_bytes, collected.needed.bytes)

    def _collect(self, claim: Claim, request: Collect) -> CollectionAnswer:
        claim.progress("deleting unused artifacts")
        self._artifacts.delete_unused()
        self._files.sweep()
        plan, deleted = self._collection().run(self._request(request), claim.progress)
        return collection_answer(plan, deleted)

    def _verify(self, claim: Claim, request: Verify) -> VerificationAnswer:
        roots = self._roots(request.application)
        verification = Verification(self._store, roots, quick=request.quick, progress=claim.progress)
        return verification_answer(verification.run(repair=request.repair))

    def _collection(self) -> Collection:
        return Collection(self._database, self._store, kept_epochs=self._settings.kept.epochs)

    def _roots(self, application: str | None) -> list[ManifestReference]:
        with self._database.reading() as session:
            return RetentionRepository(session).kept(application)

    def _request(self, request: Collect) -> CollectionRequest:
        foreign = frozenset(request.foreign)
        if request.grace_seconds is not None:
            return CollectionRequest(timedelta(seconds=request.grace_seconds), foreign)
        return CollectionRequest(timedelta(seconds=self._settings.grace_seconds), foreign, self._limit)


G1_LISTED = declare("G1.listed", "the store is listed, the catalog is not read yet")
G2_PLANNED = declare("G2.planned", "expired snapshots are known, none is marked")
G3_MARKED = declare("G3.marked", "expired snapshots are marked as collected, no file is deleted")
G4_DELETED = declare("G4.file-deleted", "one file is deleted, others are not")
G5_EMPTIED = declare("G5.emptied", "all files are deleted, the operation still runs")
G6_FOLDED = declare("G6.folded", "some old epochs are a range, in a committed transaction")

FOLDED_AT_ONCE = 2_000
"""Rows of one transaction; drivers can write between two transactions."""


@dataclass(frozen=True)
class CollectionRequest:
    """``grace``: minimum age of deleted files. ``foreign``: folders unknown to this catalog that are deleted, too.
    ``limit``: the grace period is shortened while larger files wait for its end; ``None``: never."""

    grace: timedelta
    foreign: frozenset[str] = frozenset()
    limit: WaitingLimit | None = None


@dataclass(frozen=True)
class _Needs:
    """Files that retained snapshots need, and the branches for which they could not be determined."""

    paths: set[str]
    unknown: set[str]
    problems: list[str]

    def add(self, others: _Needs) -> None:
        self.paths.update(others.paths)
        self.unknown.update(others.unknown)
        self.problems.extend(problem for problem in others.problems if problem not in self.problems)


def why_shortened(plan: CollectionPlan, grace: timedelta) -> str:
    """Message about a plan whose grace period is shorter than ``grace``, which is configured."""
    return (
        f"The grace period of this collection is {plan.grace} instead of {grace}: {plan.waiting >> 20} MiB of unneeded "
        f"files would still wait for its end, beside {plan.needed.bytes >> 20} MiB of needed ones. Readers of expired "
        "snapshots have less time; pin a snapshot that is read for longer."
    )


class Collection:
    """Use from one thread; several processes may collect at the same time."""

    def __init__(
        self,
        database: Database,
        store: SnapshotStore,
        clock: Callable[[], datetime] = now,
        kept_epochs: int = Kept().epochs,
    ) -> None:
        """``kept_epochs``: number of the newest epochs of each branch that are never folded into ranges."""
        self._database = database
        self._kept_epochs = kept_epochs
        self._store = store
        self._clock = clock
        self._references = References(store)

    def plan(self, request: CollectionRequest) -> CollectionPlan:
        """Plan a collection. Changes nothing."""
        moment = self._clock()
        files = self._store.entries()
        known = self._known(moment, request.grace)
        needs = self._needs(known)
        marked = self._to_be_marked(known, needs)
        expiring = [known.expired[key] for key in marked]
        return self._planned(files, needs, marked, moment, request, expiring)

    def run(
        self, request: CollectionRequest, progress: Callable[[str], None] = lambda said: None
    ) -> tuple[CollectionPlan, Amount]:
        """Carry out a collection. Returns the plan and the deleted files. Raises ``SnapshotError``,
        ``CatalogUnavailable``."""
        moment = self._clock()
        progress("listing the store")
        files = self._store.entries()
        G1_LISTED.hit()
        progress(f"{len(files)} files: finding their snapshots")
        known = self._known(moment, request.grace)
        before = self._needs(known)
        candidates = self._to_be_marked(known, before)
        G2_PLANNED.hit()
        marked = self._mark(candidates, moment)
        G3_MARKED.hit()
        planned = self._planned(files, before, marked, moment, request)
        deleted = self._delete(planned.files, progress)
        G5_EMPTIED.hit()
        self._fold(before, moment - request.grace, progress)
        self._references.forget_unused()
        log.info("collected: %d snapshots, %d files, %d bytes", len(marked), deleted.files, deleted.bytes)
        return planned, deleted

    def _fold(self, needs: _Needs, collected_before: datetime, progress: Callable[[str], None]) -> None:
        """Fold old epochs into ranges; those of branches that cannot be read stay."""
        with self._database.reading() as session:
            branches = FoldingRepository(session).branches()
        for branch in branches:
            if branch in needs.unknown:
                continue
            with self._database.reading() as session:
                stretches = FoldingRepository(session).foldable(
                    branch, self._kept_epochs, collected_before, needs.paths.__contains__
                )
            for stretch in stretches:
                for part in stretch.parts(FOLDED_AT_ONCE):
                    try:
                        with self._database.writing() as session:
                            FoldingRepository(session).fold(part)
                    except Conflict as error:
                        log.info("will be folded by the next collection: %s", error)
                        break
                    G6_FOLDED.hit()
                    progress(f"epochs up to {part.last} of {branch} are folded")

    def _known(self, moment: datetime, grace: timedelta) -> KnownSnapshots:
        with self._database.reading() as session:
            return RetentionRepository(session).known(moment - grace)

    def _needs(self, known: KnownSnapshots) -> _Needs:
        needs = _Needs(set(), set(), [])
        for key, reference in known.kept.items():
            try:
                needs.paths.update(self._references.needed(reference))
            except SnapshotError as error:
                needs.unknown.update(known.branches[key.branch].lineage)
                needs.problems.append(f"Snapshot {key} cannot be read; no file of its branch is deleted: {error}")
        return needs

    def _to_be_marked(self, known: KnownSnapshots, needs: _Needs) -> list[EpochKey]:
        """Expired snapshots that will lose a file. Others stay unmarked, in case the retention is extended."""
        return [
            key
            for key, reference in sorted(known.expired.items())
            if key.branch not in needs.unknown and not self._is_covered(reference, needs.paths)
        ]

    def _is_covered(self, reference: ManifestReference, paths: set[str]) -> bool:
        return reference.path in paths and self._needed_if_readable(reference) <= paths

    def _mark(self, candidates: Sequence[EpochKey], moment: datetime) -> list[EpochKey]:
        if not candidates:
            return []
        with self._database.writing() as session:
            repository = RetentionRepository(session)
            expired = repository.still_expired(candidates)
            repository.mark(expired, moment)
        return expired

    def _planned(
        self,
        files: Sequence[StoredFile],
        needs: _Needs,
        marked: Sequence[EpochKey],
        moment: datetime,
        request: CollectionRequest,
        expiring: Sequence[ManifestReference] = (),
    ) -> CollectionPlan:
        """The plan with the longest grace period that keeps the size of waiting files within the limit.

        ``needs``: of an earlier view of the catalog; those of the present one are added. ``expiring``: snapshots that
        are treated as if they had just been marked.
        """

        def planned(grace: timedelta) -> CollectionPlan:
            known = self._known(moment, grace)
            needs.add(self._needs(known))
            lately = [*known.collected_lately, *expiring] if grace else []
            facts = StoreFacts(
                branches={branch: self._facts(branch, row) for branch, row in known.branches.items()},
                needed=needs.paths,
                just_expired={path for reference in lately for path in self._needed_if_readable(reference)},
                in_use=known.in_use,
                unknown=needs.unknown,
                asked_for=request.foreign,
                named=known.named,
            )
            return plan(facts, files, moment, grace, marked, needs.problems)

        if request.limit is None:
            return planned(request.grace)
        found = request.limit.plan(request.grace, planned)
        if found.grace < request.grace:
            log.warning("%s", why_shortened(found, request.grace))
        return found

    def _facts(self, branch: str, row: KnownBranch) -> BranchFacts:
        bases_at = None
        if row.owned and row.head is not None:
            try:
                bases_at = self._references.last_bases(row.head)
            except SnapshotError:
                bases_at = None  # its bases are all spared then
        here = bases_at.epoch if bases_at is not None and bases_at.branch == branch else -1
        return BranchFacts(row.decided, row.open, row.owned, here)

    def _needed_if_readable(self, reference: ManifestReference) -> set[str]:
        try:
            return self._references.needed(reference)
        except SnapshotError:
            return {reference.path}

    def _delete(self, files: Sequence[Doomed], progress: Callable[[str], None]) -> Amount:
        """Delete manifests first: a snapshot without all its files is then no snapshot for any reader."""
        deleted, folders = Amount(), set[str]()
        for file in sorted(files, key=lambda file: ("/manifests/" not in file.path, file.path)):
            if self._store.delete(file.path):
                deleted = deleted.plus(file.bytes)
            G4_DELETED.hit()
            folders.add(str(PurePosixPath(file.path).parent))
            progress(f"{deleted.files} of {len(files)} files deleted")
        for folder in sorted(folders, reverse=True):
            self._store.remove_empty_folder(folder)
        return deleted
