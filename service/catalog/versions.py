"""Versions of applications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.errors import ArtifactError, NotFound
from epochal.service.catalog.artifacts import ArtifactRepository
from epochal.service.catalog.executions import latest_version
from epochal.service.catalog.models import Application, Artifact, Branch, Epoch, Version
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.records import failure_of
from epochal.service.catalog.types import now
from epochal.service.domain.pages import PageRequest, Part
from epochal.wire.configuration import ApplicationConfiguration
from epochal.wire.versions import GraphAnswer, VersionAnswer

if TYPE_CHECKING:
    from epochal.pipeline.description import GraphDescription


class VersionRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def latest(self, application: Application) -> Version:
        return latest_version(self._session, application.id)

    def numbered(self, application: Application, number: int) -> Version:
        row = self._session.get(Version, (application.id, number))
        if row is None:
            raise NotFound(f"Application {application.name!r} has no version {number}.")
        return row

    def maker(self, application: Application, epoch: Epoch) -> Version:
        """The version that ran an epoch; the application's latest version if that is unknown."""
        owner = self._session.get(Branch, epoch.branch)
        version = None
        if owner is not None and epoch.version is not None:
            version = self._session.get(Version, (owner.application, epoch.version))
        return self.latest(application) if version is None or version.graph is None else version

    def artifact(self, sha256: str) -> Artifact:
        """Raises ``ArtifactError``, since a request's body names the artifact."""
        return _there(self._session.get(Artifact, sha256), sha256)

    def usable(self, sha256: str, project: str) -> Artifact:
        """Like :meth:`artifact`, if the project may use it."""
        there = ArtifactRepository(self._session).may_use(project, sha256)
        return _there(self._session.get(Artifact, sha256) if there else None, sha256)

    def next_number(self, application: Application) -> int:
        """Greater than every version number of the application, including failed ones."""
        query = select(func.max(Version.number)).where(Version.application == application.id)
        return (self._session.scalar(query) or 0) + 1

    def page(self, application: Application, page: PageRequest) -> Part:
        """Listed newest first."""
        query = select(Version).where(Version.application == application.id)
        return paginate(self._session, query, page, [Version.number], descending=True)

    def add(
        self,
        application: Application,
        number: int,
        artifact: str,
        parameters: Parameters,
        configuration: ApplicationConfiguration,
        graph: GraphDescription | None,
        by: str,
        message: str | None = None,
        acceptance: Acceptance = NOTHING_ACCEPTED,
    ) -> Version:
        """Raises ``ArtifactError`` if the artifact has been deleted."""
        # Locked, so that a concurrent deletion waits and then finds this version.
        held = self._session.get(
            Artifact, artifact, with_for_update={"read": True, "key_share": True}, populate_existing=True
        )
        _there(held, artifact)
        row = Version(
            application=application.id,
            number=number,
            artifact=artifact,
            parameters=parameters,
            configuration=configuration.stored(),
            graph=None if graph is None else graph.model_dump(mode="json", exclude={"lines"}),
            code_lines=None if graph is None else _lines(graph),
            acceptance=acceptance.model_dump(mode="json") if acceptance else None,
            message=message,
            created_at=now(),
            created_by=by,
        )
        application.updated_at = now()
        self._session.add(row)
        self._session.flush()
        return row

    def accept(self, application: Application, acceptance: Acceptance) -> None:
        """Record the accepted differences for the snapshot that the application moves to, in place of those that its
        versions accepted for other snapshots."""
        self._session.execute(update(Version).where(Version.application == application.id).values(acceptance=None))
        if acceptance:
            self.latest(application).acceptance = acceptance.model_dump(mode="json")
        self._session.flush()


def acceptance_of(row: Version) -> Acceptance:
    return NOTHING_ACCEPTED if row.acceptance is None else Acceptance.model_validate(row.acceptance)


def version_answer(row: Version) -> VersionAnswer:
    return VersionAnswer(
        number=row.number,
        artifact=row.artifact,
        parameters=row.parameters,
        configuration=ApplicationConfiguration.model_validate(row.configuration).model_dump(mode="json"),
        graph=None if row.graph is None else GraphAnswer.model_validate(row.described),
        message=row.message,
        acceptance=acceptance_of(row),
        failure=failure_of(row.failure),
        created_at=row.created_at,
        created_by=row.created_by,
    )


def _lines(graph: GraphDescription) -> list[Any] | None:
    return [None if line is None else line.model_dump(mode="json") for line in graph.lines] or None


def _there(artifact: Artifact | None, sha256: str) -> Artifact:
    if artifact is None:
        raise ArtifactError(f"There is no artifact {sha256}; upload it first (POST /v1/artifacts).")
    return artifact
