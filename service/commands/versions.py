"""Versions of an application. A new version takes effect at an epoch boundary, or at the next start."""

from __future__ import annotations

from typing import Any

from epochal.contracts.catalog import VersionOrder
from epochal.errors import Conflict
from epochal.pipeline.description import GraphDescription
from epochal.service.catalog.applications import ApplicationRepository, Revisions
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.executions import ENDED, check_not_drained
from epochal.service.catalog.models import Application, Execution, Operation, Version
from epochal.service.catalog.operations import OperationRepository, operation_answer
from epochal.service.catalog.projects import RUNNING, ProjectRepository, most_subtasks
from epochal.service.catalog.sink_targets import check_sink_targets
from epochal.service.catalog.versions import VersionRepository, version_answer
from epochal.service.commands.applications import Lifecycle, announce_begun
from epochal.service.commands.proposals import Candidate, Proposals, graph_of, head_and_maker
from epochal.wire.configuration import (
    ApplicationConfiguration,
    merged_configuration,
    needs_restart,
)
from epochal.wire.operations import OperationAnswer, OperationKind
from epochal.wire.versions import CreateVersion, Rescale, VersionAnswer


class VersionService:
    def __init__(self, database: Database, proposals: Proposals, lifecycle: Lifecycle) -> None:
        self._database = database
        self._proposals = proposals
        self._lifecycle = lifecycle

    def create(self, application: str, request: CreateVersion, by: str, revisions: Revisions = None) -> VersionAnswer:
        """Check the version first: ``IncompatibleState`` names every incompatible column, and nothing is changed.

        Raises ``Conflict`` during another operation, ``SharedTargets``, ``QuotaExceeded``, and the builder's errors.
        """
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            ApplicationRepository(session).check_revision(row, revisions)
            OperationRepository(session).check_none_running(row)
            candidate = self._proposals.candidate(
                session, row, request.artifact, request.parameters, request.configuration, request.acceptance
            )
            snapshot, producer = head_and_maker(session, row)
        proposal = self._proposals.proposal(candidate, snapshot, graph_of(producer))
        proposal.check()
        version, operation = self._put_in_place(
            "upgrade", application, candidate, proposal.graph, request.message, by, revisions
        )
        return version.model_copy(update={"operation": operation.id if operation.state == "running" else None})

    def rescale(self, application: str, request: Rescale, by: str, revisions: Revisions = None) -> OperationAnswer:
        """Raises ``OptionError`` above ``max_parallelism`` or for an unknown operator, ``IncompatibleState`` if state
        would lose instances, ``Conflict`` during another operation."""
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            before = VersionRepository(session).latest(row)
            configuration = merged_configuration(before.configuration, request.changes)
            candidate = self._proposals.candidate(session, row, None, None, configuration)
            graph = graph_of(before)
            snapshot, _ = head_and_maker(session, row)
        operators = [name for name, number in request.parallelisms.items() if number is not None]
        self._proposals.check_rescale(candidate, operators, snapshot)
        return self._put_in_place("rescale", application, candidate, graph, request.message, by, revisions)[1]

    def _put_in_place(
        self,
        kind: OperationKind,
        application: str,
        candidate: Candidate,
        graph: GraphDescription | None,
        message: str | None,
        by: str,
        revisions: Revisions,
    ) -> tuple[VersionAnswer, OperationAnswer]:
        """The version, and the operation that applies it: already done if nothing is running."""
        with self._database.writing() as session:
            applications, versions = ApplicationRepository(session), VersionRepository(session)
            row = applications.locked(application, revisions)
            OperationRepository(session).check_none_running(row)
            check_not_drained(session, row)
            if graph is not None and not row.shadow:
                check_sink_targets(session, graph.sinks, row.project, row)
            latest = versions.latest(row)
            if latest.number != candidate.before.number:
                raise Conflict(
                    f"Version {latest.number} of application {application!r} was created meanwhile; read "
                    "the application again."
                )
            version = versions.add(
                row,
                versions.next_number(row),
                candidate.artifact.sha256,
                candidate.parameters,
                candidate.configuration,
                graph,
                by,
                message,
                candidate.acceptance,
            )
            operation = _begin(session, row, kind, version, candidate, by)
            announce_begun(session, row, operation)
            before = candidate.before
            if most_subtasks(version.configuration, version.graph) > most_subtasks(before.configuration, before.graph):
                ProjectRepository(session).check_room(row.project, RUNNING)
            answer = version_answer(version), operation_answer(operation, application)
            execution = operation.execution
        self._lifecycle.wake(execution)
        return answer


def _begin(
    session: Session, application: Application, kind: OperationKind, version: Version, candidate: Candidate, by: str
) -> Operation:
    operations = OperationRepository(session)
    execution = ApplicationRepository(session).execution(application)
    arguments: dict[str, Any] = {"version": version.number}
    if execution is None or execution.state in ENDED:
        return operations.add_done(kind, application, arguments, by)
    if execution.state == "stopping":
        raise Conflict(f"Application {application.name!r} is stopping; create the version when it has stopped.")
    if needs_restart(_configuration(session, application, execution), candidate.configuration):
        operation = operations.add(kind, application, execution, {**arguments, "successor": False}, by, "stopping")
        operations.ask_to_stop(execution, operation)
        return operation
    operation = operations.add(kind, application, execution, arguments, by, "waiting for the next epoch boundary")
    operations.direct(execution, operation, "reconfigure", _order(version, candidate).model_dump(mode="json"))
    return operation


def _configuration(session: Session, application: Application, execution: Execution) -> ApplicationConfiguration:
    running = VersionRepository(session).numbered(application, execution.version)
    return ApplicationConfiguration.model_validate(running.configuration)


def _order(version: Version, candidate: Candidate) -> VersionOrder:
    return VersionOrder(
        version=version.number,
        artifact=version.artifact,
        filename=candidate.artifact.filename,
        parameters=version.parameters,
        configuration=version.configuration,
        by=version.created_by,
        message=version.message,
        acceptance=candidate.acceptance,
    )
