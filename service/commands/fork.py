"""Forks: a new application from a snapshot of another. No state is copied: the new branch begins at the parent's
snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from epochal.contracts.backend import names_place
from epochal.contracts.catalog import ManifestReference
from epochal.errors import Conflict
from epochal.pipeline.description import GraphDescription
from epochal.service.catalog.application_answers import application_answer
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.executions import BranchOrigin
from epochal.service.catalog.models import Application
from epochal.service.catalog.projects import APPLICATIONS, QUOTAS, ProjectRepository
from epochal.service.catalog.sink_targets import SharedTargets, check_sink_targets
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands.applications import Lifecycle, announce_begun, start_operation
from epochal.service.commands.proposals import Candidate, Proposals, graph_of, head_and_maker
from epochal.service.domain.ports import Builder
from epochal.wire.applications import ApplicationAnswer, ForkApplication
from epochal.wire.configuration import merged_configuration
from epochal.wire.projects import new_name, project_of


@dataclass(frozen=True)
class _Plan:
    """The planned fork, before analysis of its code."""

    base: ManifestReference
    candidate: Candidate


class ForkService:
    def __init__(self, database: Database, builder: Builder, proposals: Proposals, lifecycle: Lifecycle) -> None:
        self._database = database
        self._builder = builder
        self._proposals = proposals
        self._lifecycle = lifecycle

    def fork(self, source: str, request: ForkApplication, by: str) -> ApplicationAnswer:
        """Create the fork in the project of ``source``. Raises ``NotFound``, ``InvalidInput`` if several snapshots
        are named, ``NameTaken``, ``Conflict`` without a committed epoch, ``SharedTargets``, ``QuotaExceeded``,
        ``IncompatibleState`` as an upgrade does, and the builder's errors."""
        name = new_name(project_of(source), request.name)
        with self._database.reading() as session:
            ApplicationRepository(session).check_free(name)
            plan = self._plan(session, source, request)
        candidate = plan.candidate
        graph = self._proposals.described(candidate)
        if not request.shadow:
            _check_targets(source, self._graph_of(candidate), graph)
        graph = self._checked(plan, graph)
        with self._database.writing() as session:
            if not request.shadow:
                check_sink_targets(session, graph.sinks, project_of(name))
            row = self._write(session, name, plan, graph, request, by)
            ProjectRepository(session).check_room(row.project, QUOTAS if request.start else APPLICATIONS)
            answer = application_answer(session, row)
        self._lifecycle.wake(answer.execution)
        return answer

    def _plan(self, session: Session, source: str, request: ForkApplication) -> _Plan:
        row = ApplicationRepository(session).named(source)
        base = _base(session, row, request)
        version = VersionRepository(session).latest(row)
        configuration = merged_configuration(version.configuration, request.configuration)
        parameters = {**version.parameters, **request.parameters}
        candidate = self._proposals.candidate(
            session, row, request.artifact, parameters, configuration, request.acceptance
        )
        return _Plan(base, candidate)

    def _checked(self, plan: _Plan, described: GraphDescription) -> GraphDescription:
        """Compare the fork's graph, with its state tables, with the snapshot. Raises ``IncompatibleState``.

        The analysis takes seconds. It is skipped if the code is the source's and at most the sinks differ.
        """
        candidate, before = plan.candidate, graph_of(plan.candidate.before)
        self._proposals.check_in_snapshot(candidate, plan.base)
        if before is not None and before.tables is not None and candidate.artifact.sha256 == candidate.before.artifact:
            known = _with_what_was_analysed(described, before)
            if known is not None:
                self._proposals.compared(candidate, known, plan.base, before).check()
                return known
        proposal = self._proposals.proposal(candidate, plan.base, before)
        proposal.check()
        return proposal.graph

    @staticmethod
    def _write(
        session: Session, name: str, plan: _Plan, graph: GraphDescription, request: ForkApplication, by: str
    ) -> Application:
        origin, candidate = BranchOrigin("fork", plan.base.key, request.message), plan.candidate
        row = ApplicationRepository(session).add(name, origin, request.shadow, by)
        VersionRepository(session).add(
            row,
            1,
            candidate.artifact.sha256,
            candidate.parameters,
            candidate.configuration,
            graph,
            by,
            acceptance=candidate.acceptance,
        )
        if request.start:
            announce_begun(session, row, start_operation(session, row, by))
        return row

    def _graph_of(self, candidate: Candidate) -> GraphDescription:
        """Graph of the previous version."""
        version, project = candidate.before, candidate.project
        known = graph_of(version)
        if known is not None:
            return known
        with self._database.reading() as session:
            as_it_was = self._proposals.as_it_was(session, project, version)
        producer = self._proposals.producer(as_it_was)
        return self._builder.describe(project, producer.artifact, producer.parameters, producer.configuration)


def _base(session: Session, source: Application, request: ForkApplication) -> ManifestReference:
    meant = (request.epoch, request.savepoint, request.tag, request.at)
    if any(each is not None for each in meant):
        return SnapshotRepository(session).resolve(source, *meant)
    head, _ = head_and_maker(session, source)
    if head is None:
        raise Conflict(f"Application {source.name!r} has not committed an epoch yet; there is nothing to fork.")
    return head


def _with_what_was_analysed(described: GraphDescription, before: GraphDescription) -> GraphDescription | None:
    """Return a description with the analysed columns and tables; ``None`` unless only sinks differ."""
    nodes = []
    for node, known in zip_longest(described.nodes, before.nodes):
        if node is None or known is None or (node.id, node.name, node.type) != (known.id, known.name, known.type):
            return None
        if node.type != "sink" and node != known.model_copy(update={"columns": node.columns, "stream": node.stream}):
            return None
        nodes.append(node.model_copy(update={"columns": known.columns}))
    return described.model_copy(update={"nodes": tuple(nodes), "tables": before.tables})


def _check_targets(source: str, before: GraphDescription, after: GraphDescription) -> None:
    taken = set(before.sinks.values())
    shared = sorted(name for name, target in after.sinks.items() if target in taken and names_place(target))
    if shared:
        targets = ", ".join(f"{name!r} ({after.sinks[name]})" for name in shared)
        raise SharedTargets(
            f"The fork would write to the sinks of {source!r}: {targets}. Set parameters that name other targets, or "
            "fork with shadow, which writes to no sink."
        )
