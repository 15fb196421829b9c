"""Versions: what an application runs. A new one is used by the next start."""

from __future__ import annotations

from epochal.errors import Conflict, OptionError
from epochal.pipeline.description import GraphDescription
from epochal.service.applications.configuration import ApplicationConfiguration, check_configuration
from epochal.service.applications.repository import ApplicationRepository
from epochal.service.artifacts.files import artifact_path
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import ENDED
from epochal.service.catalog.models import Version
from epochal.service.pagination import PageRequest
from epochal.service.ports import Builder
from epochal.service.schema import Page
from epochal.service.settings import Settings
from epochal.service.versions.repository import VersionRepository
from epochal.service.versions.schemas import CreateVersion, VersionAnswer


class VersionService:
    def __init__(self, settings: Settings, database: Database, builder: Builder) -> None:
        self._settings = settings
        self._database = database
        self._builder = builder

    def page(self, application: str, page: PageRequest) -> Page[VersionAnswer]:
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            part = VersionRepository(session).page(row, page)
            return Page(items=[version_answer(version) for version in part.rows], next_cursor=part.next_cursor)

    def create(self, application: str, request: CreateVersion, by: str) -> VersionAnswer:
        """Analysed first; ``Conflict`` when the application runs, ``OptionError`` when its state could not be read."""
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            latest = VersionRepository(session).latest(row)
            artifact = VersionRepository(session).artifact(request.artifact or latest.artifact)
            path = artifact_path(self._settings.artifacts_directory, artifact.sha256, artifact.filename)
        before = ApplicationConfiguration.model_validate(latest.configuration)
        configuration = request.configuration or before
        check_configuration(configuration)
        check_same_key_groups(before, configuration)
        parameters = latest.parameters if request.parameters is None else request.parameters
        graph = self._builder.analyse(path, parameters, configuration)
        with self._database.writing() as session:
            applications, versions = ApplicationRepository(session), VersionRepository(session)
            row = applications.locked(application)
            execution = applications.execution(row)
            if execution is not None and execution.state not in ENDED:
                raise Conflict(
                    f"Application {application!r} is {execution.state}; stop it before giving it a new version."
                )
            number = versions.latest(row).number + 1
            return version_answer(versions.add(row, number, artifact.sha256, parameters, configuration, graph, by))


def check_same_key_groups(before: ApplicationConfiguration, after: ApplicationConfiguration) -> None:
    """Raises ``OptionError``: keys are in key groups of the number that the application began with."""
    if before.max_parallelism != after.max_parallelism:
        raise OptionError(
            f"configuration.max_parallelism cannot change from {before.max_parallelism} to {after.max_parallelism}: "
            "the state's key groups depend on it."
        )


def version_answer(row: Version) -> VersionAnswer:
    return VersionAnswer(
        number=row.number,
        artifact=row.artifact,
        parameters=row.parameters,
        configuration=ApplicationConfiguration.model_validate(row.configuration),
        graph=None if row.graph is None else GraphDescription.model_validate(row.graph),
        created_at=row.created_at,
        created_by=row.created_by,
    )
