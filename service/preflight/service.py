"""Preflight: everything that would be checked by an upgrade, without one."""

from __future__ import annotations

from epochal.errors import InvalidInput
from epochal.service.applications.configuration import (
    ApplicationConfiguration,
    merged_configuration,
    needs_restart,
)
from epochal.service.applications.repository import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Epoch
from epochal.service.preflight.schemas import Preflight, PreflightAnswer
from epochal.service.snapshots.repository import SnapshotRepository
from epochal.service.versions.proposals import Proposals, graph_of, head_and_maker, maker
from epochal.service.versions.repository import VersionRepository


class PreflightService:
    def __init__(self, database: Database, proposals: Proposals) -> None:
        self._database = database
        self._proposals = proposals

    def check(self, request: Preflight) -> PreflightAnswer:
        """Raises ``NotFound``, ``SnapshotExpired``, and what the builder says of the code."""
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(request.application)
            before = VersionRepository(session).latest(row).configuration
            configuration = merged_configuration(before, request.configuration)
            wanted = self._proposals.wanted(session, row, request.artifact, request.parameters, configuration)
            if request.epoch is None and request.savepoint is None:
                snapshot, made_by = head_and_maker(session, row)
            else:
                snapshot = SnapshotRepository(session).resolve(row, request.epoch, request.savepoint)
                made_by = maker(session, row, session.get_one(Epoch, (snapshot.branch, snapshot.epoch)))
            made = None if request.trial is None else self._proposals.made(session, made_by)
        if request.trial is not None and snapshot is None:
            raise InvalidInput(f"Application {request.application!r} has no committed epoch that could be tried again.")
        proposal = self._proposals.looked_at(wanted, snapshot, graph_of(made_by))
        trial = None
        if request.trial and made and snapshot and not proposal.comparison.problems:
            trial = self._proposals.tried(request.application, wanted, snapshot, made, request.trial)
        return PreflightAnswer(
            ok=not proposal.comparison.problems,
            application=request.application,
            snapshot=None if snapshot is None else snapshot.key,
            comparison=proposal.comparison,
            restarts=needs_restart(ApplicationConfiguration.model_validate(before), configuration),
            graph=proposal.graph,
            trial=trial,
        )
