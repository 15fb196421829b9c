"""A version compared with the snapshot that it would go on from, and tried on the epochs before that."""

from __future__ import annotations

from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Application
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands.proposals import Candidate, Proposals, graph_of, head_and_maker
from epochal.service.runtime.operations import Progress
from epochal.wire.configuration import (
    ApplicationConfiguration,
    merged_configuration,
    needs_restart,
)
from epochal.wire.graphs import GraphAnswer
from epochal.wire.preflight import Preflight, PreflightAnswer, TrialAnswer


def snapshot_of(session: Session, application: Application, request: Preflight) -> EpochKey | None:
    """The one that is asked for, or the head; ``None``: nothing is committed yet.

    Raises ``NotFound``, ``SnapshotExpired``.
    """
    if request.epoch is None and request.savepoint is None:
        head, _ = head_and_maker(session, application)
        return None if head is None else head.key
    return SnapshotRepository(session).resolve(application, request.epoch, request.savepoint).key


class Check:
    """Changes nothing."""

    def __init__(self, database: Database, proposals: Proposals) -> None:
        self._database = database
        self._proposals = proposals

    def candidate(self, session: Session, application: Application, request: Preflight) -> Candidate:
        """Raises ``ArtifactError``, ``OptionError``."""
        before = VersionRepository(session).latest(application).configuration
        configuration = merged_configuration(before, request.configuration)
        return self._proposals.candidate(session, application, request.artifact, request.parameters, configuration)

    def run(self, request: Preflight, at: EpochKey | None, progress: Progress) -> PreflightAnswer:
        """With a trial, where one is asked for. ``at``: the snapshot.

        Raises ``SnapshotExpired``, what the builder says of the code, and what aborts an epoch.
        """
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(request.application)
            candidate = self.candidate(session, row, request)
            if at is None:
                snapshot, version = None, candidate.before
            else:
                epoch = SnapshotRepository(session).row(at)
                snapshot = SnapshotRepository(session).readable(row, epoch, held=True)
                version = VersionRepository(session).maker(row, epoch)
            producer = None if request.trial is None else self._proposals.producer(session, version)
        progress("the version is built and analysed")
        proposal = self._proposals.proposal(candidate, snapshot, graph_of(version))
        ok = not proposal.comparison.problems
        trial = None
        if ok and request.trial and producer and snapshot:
            progress(f"the last {request.trial} epochs are run again, with the version before and with this one")
            trial = self._proposals.trial(request.application, candidate, snapshot, producer, request.trial)
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
