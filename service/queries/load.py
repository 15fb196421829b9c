"""How busy an application is, and what autoscaling makes of it."""

from __future__ import annotations

from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.autoscaling import ScalingRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.models import Application
from epochal.service.catalog.types import now
from epochal.service.catalog.versions import VersionRepository
from epochal.service.domain.autoscaling import RescaleTo, decide
from epochal.wire.applications import AutoscalingAnswer, LoadAnswer
from epochal.wire.configuration import ApplicationConfiguration


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
            runs = execution is not None and execution.ended_at is None
            moment, reported_at = scaling.moment(execution) if execution is not None and runs else (None, None)
            load = None if moment is None else moment.load
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
                operators={} if load is None else load.operators,
                autoscaling=_autoscaling(session, row),
            )


def _autoscaling(session: Session, application: Application) -> AutoscalingAnswer | None:
    moment = now()
    situation = ScalingRepository(session).situation(application, moment)
    if situation is None:
        return None
    verdict = decide(situation, moment)
    parallelism = verdict.parallelism if isinstance(verdict, RescaleTo) else None
    return AutoscalingAnswer(parallelism=parallelism, reason=verdict.reason.removeprefix("autoscaling: "))
