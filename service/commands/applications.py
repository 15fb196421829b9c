"""Applications: created after their code was analysed, deleted when nothing runs."""

from __future__ import annotations

from epochal.errors import Conflict
from epochal.service.catalog.application_answers import application_answer
from epochal.service.catalog.applications import ApplicationRepository, Revisions
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import ENDED, BranchOrigin
from epochal.service.catalog.projects import APPLICATIONS, QUOTAS, ProjectRepository
from epochal.service.catalog.sink_targets import check_places
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands.lifecycle import Lifecycle, announce_begun, start_operation
from epochal.service.domain.ports import Builder
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.wire.applications import ApplicationAnswer, CreateApplication
from epochal.wire.configuration import check_configuration
from epochal.wire.projects import new_name


class ApplicationService:
    def __init__(
        self, settings: Settings, database: Database, builder: Builder, code: ArtifactCache, lifecycle: Lifecycle
    ) -> None:
        self._settings = settings
        self._database = database
        self._builder = builder
        self._code = code
        self._lifecycle = lifecycle

    def create(self, request: CreateApplication, project: str, by: str) -> ApplicationAnswer:
        """Raises ``NotFound`` without such a project, ``NameTaken``, ``ArtifactError``, ``SharedTargets``,
        ``QuotaExceeded``, ``OptionError`` where its drivers have no place to run, and what the builder says of the
        code."""
        check_configuration(request.configuration)
        name = new_name(project, request.name)
        with self._database.reading() as session:
            ProjectRepository(session).check_there(project)
            self._settings.check_project(project)
            ApplicationRepository(session).check_free(name)
            artifact = VersionRepository(session).usable(request.artifact, project)
        graph = self._builder.analyse(project, self._code.file(artifact), request.parameters, request.configuration)
        with self._database.writing() as session:
            check_places(session, graph.sinks, project)
            row = ApplicationRepository(session).add(name, BranchOrigin("start"), shadow=False, by=by)
            VersionRepository(session).add(
                row, 1, artifact.sha256, request.parameters, request.configuration, graph, by
            )
            if request.start:
                started = start_operation(session, row, by, available_now=request.available_now, drain=request.drain)
                announce_begun(session, row, started)
            ProjectRepository(session).check_room(project, QUOTAS if request.start else APPLICATIONS)
            answer = application_answer(session, row)
        self._lifecycle.wake(answer.execution)
        return answer

    def delete(self, name: str, revisions: Revisions = None) -> None:
        """The name is free again. Snapshots stay: forks may stand on them. Raises ``Conflict`` while it runs."""
        with self._database.writing() as session:
            repository = ApplicationRepository(session)
            row = repository.locked(name, revisions)
            execution = repository.execution(row)
            if execution is not None and execution.state not in ENDED:
                raise Conflict(f"Application {name!r} is {execution.state}; stop it before deleting it.")
            repository.delete(row)
