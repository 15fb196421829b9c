"""Applications with their versions, savepoints and annotations of snapshots; artifacts; load."""

from __future__ import annotations

from datetime import datetime

from epochal.contracts.measurements import Load, Moment, OperatorLoad
from epochal.errors import NotFound
from epochal.service.catalog.annotations import AnnotationRepository, message_answer, pin_answer, tag_answer
from epochal.service.catalog.application_answers import application_answer, application_answers
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.artifacts import ArtifactRepository
from epochal.service.catalog.autoscaling import ScalingRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.lags import current_moments, lag_answer, lag_of
from epochal.service.catalog.models import Application
from epochal.service.catalog.projects import ProjectRepository
from epochal.service.catalog.savepoints import SavepointRepository, savepoint_answer
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.types import now
from epochal.service.catalog.versions import VersionRepository, version_answer
from epochal.service.domain.autoscaling import RescaleTo, decide
from epochal.service.domain.pages import PageRequest
from epochal.wire.applications import (
    ApplicationAnswer,
    ApplicationLag,
    AutoscalingDecision,
    LoadAnswer,
    PlacementAnswer,
    SinkLoad,
    SourceLoad,
)
from epochal.wire.bodies import Page
from epochal.wire.configuration import ApplicationConfiguration
from epochal.wire.snapshots import SavepointAnswer, SnapshotMessageAnswer, SnapshotPinAnswer, SnapshotTagAnswer
from epochal.wire.versions import ArtifactAnswer, VersionAnswer


class ApplicationQueries:
    """Methods raise ``NotFound`` for missing resources. Snapshots are named by their epoch in the lineage."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def artifact(self, sha256: str, project: str) -> ArtifactAnswer:
        with self._database.reading() as session:
            return ArtifactRepository(session).get(sha256, project)

    def artifacts(self, page: PageRequest, project: str) -> Page[ArtifactAnswer]:
        with self._database.reading() as session:
            ProjectRepository(session).check_there(project)
            items, next_cursor = ArtifactRepository(session).page(page, project)
            return Page(items=list(items), next_cursor=next_cursor)

    def application(self, name: str) -> ApplicationAnswer:
        with self._database.reading() as session:
            return application_answer(session, ApplicationRepository(session).named(name))

    def applications(self, page: PageRequest, project: str) -> Page[ApplicationAnswer]:
        with self._database.reading() as session:
            ProjectRepository(session).check_there(project)
            part = ApplicationRepository(session).page(page, project)
            return Page(items=application_answers(session, part.rows), next_cursor=part.next_cursor)

    def versions(self, application: str, page: PageRequest) -> Page[VersionAnswer]:
        with self._database.reading() as session:
            part = VersionRepository(session).page(ApplicationRepository(session).named(application), page)
            return Page(items=[version_answer(row) for row in part.rows], next_cursor=part.next_cursor)

    def savepoint(self, application: str, name: str) -> SavepointAnswer:
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            return savepoint_answer(SavepointRepository(session).get(row, name))

    def savepoints(self, application: str, page: PageRequest) -> Page[SavepointAnswer]:
        with self._database.reading() as session:
            part = SavepointRepository(session).page(ApplicationRepository(session).named(application), page)
            return Page(items=[savepoint_answer(item) for item in part.rows], next_cursor=part.next_cursor)

    def pin(self, application: str, epoch: int) -> SnapshotPinAnswer:
        with self._database.reading() as session:
            row = AnnotationRepository(session).pin(SnapshotRepository(session).decided(application, epoch))
            if row is None:
                raise NotFound(f"Epoch {epoch} of application {application!r} is not pinned.")
            return pin_answer(row)

    def pins(self, application: str, page: PageRequest) -> Page[SnapshotPinAnswer]:
        with self._database.reading() as session:
            part = AnnotationRepository(session).pins(ApplicationRepository(session).named(application), page)
            return Page(items=[pin_answer(row) for row in part.rows], next_cursor=part.next_cursor)

    def tags(self, application: str, page: PageRequest) -> Page[SnapshotTagAnswer]:
        with self._database.reading() as session:
            part = AnnotationRepository(session).tags(ApplicationRepository(session).named(application), page)
            return Page(items=[tag_answer(row) for row in part.rows], next_cursor=part.next_cursor)

    def tags_of(self, application: str, epoch: int) -> Page[SnapshotTagAnswer]:
        with self._database.reading() as session:
            key = SnapshotRepository(session).decided(application, epoch)
            annotations = AnnotationRepository(session).of([key]).get(key)
            return Page(items=[] if annotations is None else list(annotations.tags), next_cursor=None)

    def message(self, application: str, epoch: int) -> SnapshotMessageAnswer:
        with self._database.reading() as session:
            row = AnnotationRepository(session).message(SnapshotRepository(session).decided(application, epoch))
            if row is None:
                raise NotFound(f"Epoch {epoch} of application {application!r} has no message.")
            return message_answer(row)


class LoadService:
    def __init__(self, database: Database) -> None:
        self._database = database

    def load(self, application: str) -> LoadAnswer:
        """Raises ``NotFound``."""
        with self._database.reading() as session:
            applications = ApplicationRepository(session)
            row = applications.named(application)
            execution = applications.execution(row)
            versions, scaling = VersionRepository(session), ScalingRepository(session)
            version = versions.latest(row) if execution is None else versions.numbered(row, execution.version)
            moment, reported_at = scaling.moment(execution)
            load = moment.load
            configuration = ApplicationConfiguration.model_validate(version.configuration)
            return LoadAnswer(
                application=row.name,
                reported_at=reported_at,
                version=version.number if load is None else load.version,
                parallelism=configuration.parallelism if load is None else load.parallelism,
                epoch=None if load is None else load.epoch,
                seconds=0.0 if load is None else load.seconds,
                busy_share=0.0 if load is None else load.busy_share,
                lag_seconds=None if load is None or not load.samples else load.samples[-1].lag_seconds,
                operators={} if load is None else _measured_operators(load),
                sources=_sources(moment, now()),
                sinks=_sinks(moment),
                tables=moment.tables,
                store_away_since=moment.store_away_since,
                autoscaling=_autoscaling(session, row),
            )

    def lags(self, page: PageRequest, project: str) -> Page[ApplicationLag]:
        """Lags of the sources of all applications of a project, by name: two statements for a page."""
        with self._database.reading() as session:
            ProjectRepository(session).check_there(project)
            part = ApplicationRepository(session).page(page, project)
            moments = current_moments(session, [row.id for row in part.rows])
        moment = now()
        items = [lag_answer(row.name, moments.get(row.id), moment) for row in part.rows]
        return Page(items=items, next_cursor=part.next_cursor)

    def placement(self, application: str) -> PlacementAnswer:
        """Raises ``NotFound``."""
        with self._database.reading() as session:
            applications = ApplicationRepository(session)
            row = applications.named(application)
            moment, reported_at = ScalingRepository(session).moment(applications.execution(row))
            found = moment.placement
            return PlacementAnswer(
                application=row.name,
                reported_at=reported_at,
                epoch=None if found is None else found.epoch,
                machines={} if found is None else found.machines,
                moves=0 if found is None else found.moves,
                unplaced=None if found is None else found.unplaced,
                read_bytes={} if found is None else found.read_bytes,
                moved_stragglers=() if found is None else found.moved_stragglers,
            )


def _measured_operators(load: Load) -> dict[str, OperatorLoad]:
    """Drivers report zeros for all operators until the window has an epoch, of which it then has the rows by source."""
    counted = load.rows_read or load.rows_written
    worked = any(operator.rows or operator.busy_seconds for operator in load.operators.values())
    return load.operators if counted or worked else {}


def _sources(moment: Moment, at: datetime) -> dict[str, SourceLoad]:
    rows = {} if moment.load is None else moment.load.rows_read
    return {name: SourceLoad(rows=rows.get(name), **lag_of(source, at)) for name, source in moment.sources.items()}


def _sinks(moment: Moment) -> dict[str, SinkLoad]:
    rows = {} if moment.load is None else moment.load.rows_written
    return {
        name: SinkLoad(rows=rows.get(name), blocked_since=moment.blocked_sinks.get(name))
        for name in dict.fromkeys([*rows, *moment.blocked_sinks])
    }


def _autoscaling(session: Session, application: Application) -> AutoscalingDecision | None:
    moment = now()
    situation = ScalingRepository(session).situation(application, moment)
    if situation is None:
        return None
    verdict = decide(situation, moment)
    reason = verdict.reason.removeprefix("autoscaling: ")
    if not isinstance(verdict, RescaleTo):
        return AutoscalingDecision(parallelism=None, reason=reason)
    return AutoscalingDecision(parallelism=verdict.parallelism, parallelisms=dict(verdict.operators), reason=reason)
