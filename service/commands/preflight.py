"""Preflight: compares a version with the snapshot that it would continue from, as an upgrade does, without deploying
it; and trials, which run the last epochs again in the background."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.contracts.inbox import CallBatch
from epochal.contracts.source import Slice
from epochal.declarations.entry import ENTRIES
from epochal.engine.trial_report import trial_folders
from epochal.errors import InvalidInput
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.inboxes import InboxRepository, inbox_of_branch
from epochal.service.catalog.models import Application, InboxBatch
from epochal.service.catalog.operation_claims import Claim
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands.proposals import Candidate, Proposals, graph_of, head_and_maker
from epochal.service.runtime.operations import OperationWorker, Verb
from epochal.snapshots.lineage import history
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.wire.configuration import ApplicationConfiguration, merged_configuration, needs_restart
from epochal.wire.operations import OperationAnswer
from epochal.wire.preflight import Preflight, PreflightAnswer, TrialAnswer, TrialArguments
from epochal.wire.projects import full_name
from epochal.wire.versions import GraphAnswer


class PreflightService:
    """Changes nothing."""

    def __init__(self, database: Database, proposals: Proposals, store: SnapshotStore, worker: OperationWorker) -> None:
        self._database = database
        self._proposals = proposals
        self._store = store
        self._worker = worker
        worker.register("trials", [Verb("trial", TrialArguments, self._carry_out, self._sweep)])

    def check(self, request: Preflight, project: str) -> PreflightAnswer:
        """Raises ``NotFound``, ``SnapshotExpired``, and the builder's errors."""
        name = full_name(project, request.application)
        with self._database.reading() as session:
            at = _snapshot(session, ApplicationRepository(session).named(name), request)
        return self._run(name, request, at, "", lambda said: None, lambda: None)

    def try_out(self, request: Preflight, project: str, by: str) -> OperationAnswer:
        """Compare, and run a trial in the background, on the snapshot resolved now.

        Raises ``NotFound``, ``SnapshotExpired``, ``ArtifactError``, ``OptionError``, and ``InvalidInput`` without an
        epoch that can be repeated.
        """

        def record(session: Session) -> tuple[Application, TrialArguments]:
            application = ApplicationRepository(session).named(full_name(project, request.application))
            at = _snapshot(session, application, request)
            if at is None:
                raise InvalidInput(f"Application {request.application!r} has no committed epoch that can be repeated.")
            self._candidate(session, application, request)
            return application, TrialArguments(request=request, project=project, branch=at.branch, epoch=at.epoch)

        return self._worker.begin("trial", by, record)

    def _carry_out(self, claim: Claim, arguments: TrialArguments) -> PreflightAnswer:
        self._sweep(claim, arguments)  # of a previous, killed attempt
        at = EpochKey(arguments.branch, arguments.epoch)
        name = full_name(arguments.project, arguments.request.application)
        return self._run(name, arguments.request, at, claim.id, claim.progress, claim.check)

    def _sweep(self, claim: Claim, arguments: TrialArguments) -> None:
        for folder in trial_folders(claim.id):
            for path in self._store.list(folder):
                self._store.delete(path)

    def _candidate(self, session: Session, application: Application, request: Preflight) -> Candidate:
        """Raises ``ArtifactError``, ``OptionError``."""
        before = VersionRepository(session).latest(application).configuration
        configuration = merged_configuration(before, request.configuration)
        return self._proposals.candidate(
            session, application, request.artifact, request.parameters, configuration, request.acceptance
        )

    def _run(
        self,
        name: str,
        request: Preflight,
        at: EpochKey | None,
        trial_name: str,
        progress: Callable[[str], None],
        meanwhile: Callable[[], None],
    ) -> PreflightAnswer:
        """Compare, with a trial if requested. ``at``: the snapshot.

        Raises ``SnapshotExpired``, ``InvalidInput`` if calls that the epochs processed are missing, the builder's
        errors, and errors that abort an epoch.
        """
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(name)
            candidate = self._candidate(session, row, request)
            if at is None:
                snapshot, version = None, candidate.before
            else:
                epoch = SnapshotRepository(session).row(at)
                snapshot = SnapshotRepository(session).readable(row, epoch, held=True)
                version = VersionRepository(session).maker(row, epoch)
            as_it_was = None if request.trial is None else self._proposals.as_it_was(session, row.project, version)
        calls: tuple[CallBatch, ...] = ()
        if request.trial and snapshot:
            calls = calls_to_try_again(self._database, self._store, snapshot, request.trial)
        producer = None if as_it_was is None else self._proposals.producer(as_it_was)
        progress("building and analysing the version")
        proposal = self._proposals.proposal(candidate, snapshot, graph_of(version))
        ok = not proposal.comparison.problems
        trial = None
        if ok and request.trial and producer and snapshot:
            progress(f"repeating the last {request.trial} epochs with the previous version and with this one")
            trial = self._proposals.trial(
                name, candidate, snapshot, producer, request.trial, trial_name, calls, meanwhile
            )
        return PreflightAnswer(
            ok=ok,
            application=request.application,
            snapshot=at,
            comparison=proposal.comparison,
            restarts=needs_restart(
                ApplicationConfiguration.model_validate(candidate.before.configuration), candidate.configuration
            ),
            graph=GraphAnswer.model_validate(proposal.graph.model_dump(mode="json")),
            trial=None if trial is None else TrialAnswer.model_validate(trial.model_dump(mode="json")),
        )


def _snapshot(session: Session, application: Application, request: Preflight) -> EpochKey | None:
    """The requested snapshot, or the head; ``None``: nothing is committed yet.

    Raises ``NotFound``, ``SnapshotExpired``.
    """
    if request.epoch is None and request.savepoint is None:
        head, _ = head_and_maker(session, application)
        return None if head is None else head.key
    return SnapshotRepository(session).resolve(application, request.epoch, request.savepoint).key


MOST_BYTES = 64 << 20
"""Maximum size of the calls of one trial, which are held in memory here and in the builder."""


def calls_to_try_again(
    database: Database, store: SnapshotStore, head: ManifestReference, epochs: int
) -> tuple[CallBatch, ...]:
    """Calls of the epochs in order. Raises ``InvalidInput`` if some have expired, were never in this catalog, or
    exceed :data:`MOST_BYTES`; and the store's errors for manifests."""
    found, size = list[CallBatch](), 0
    for place, manifest in enumerate(islice(history(store, head), epochs)):
        slice = manifest.slices.get(ENTRIES)
        if slice is None:
            continue
        mine = list(_calls(database, manifest, slice))
        if sum(len(batch.request_ids) for batch in mine) != slice.rows:
            raise InvalidInput(
                f"Epoch {manifest.epoch} of {manifest.branch} processed {slice.rows} calls of entries that are not in "
                f"the inbox: they precede the import of the application, or have expired. {_fewer(place)}"
            )
        size += sum(len(text) for batch in mine for part in (batch.request_ids, batch.arguments) for text in part)
        if size > MOST_BYTES:
            raise InvalidInput(
                f"The calls of entries of these {epochs} epochs exceed the maximum of {MOST_BYTES >> 20} MiB for a "
                f"trial. {_fewer(place)}"
            )
        found[:0] = mine
    return tuple(found)


def _calls(database: Database, manifest: Manifest, slice: Slice) -> Iterator[CallBatch]:
    """Calls of one epoch. A fork has its own inbox: calls before its snapshot are in that of its source."""
    after, through = int(slice.start["through"]), int(slice.end["through"])
    with database.reading() as session:
        application = inbox_of_branch(session, manifest.branch)
        while application is not None and after < through:
            _, batches = InboxRepository(session, application).page(after, through)
            if not batches:
                return
            for batch in batches:
                yield _batch(batch).within(after, through)
            after = batches[-1].last


def _batch(row: InboxBatch) -> CallBatch:
    content = json.loads(row.content)
    return CallBatch(
        entry=row.entry, first=row.first, request_ids=content["request_ids"], arguments=content["arguments"]
    )


def _fewer(epochs: int) -> str:
    return f"Repeat the last {epochs} epochs." if epochs else "These epochs cannot be repeated."
