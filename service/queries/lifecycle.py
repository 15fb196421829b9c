"""The life cycle of an application: starts, stops, restarts, rescales, upgrades, rollbacks and recoveries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import cast

from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.lifecycle import LifecycleRepository, Recovery
from epochal.service.catalog.models import Operation, Version
from epochal.service.catalog.records import failure_of
from epochal.service.domain.pages import PageRequest
from epochal.wire.applications import LifecycleItem, LifecycleKind, RunSettings
from epochal.wire.bodies import Page
from epochal.wire.operations import OperationState
from epochal.wire.problems import Problem


class LifecycleHistory:
    """Read side of the life cycle."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, application: str, page: PageRequest) -> Page[LifecycleItem]:
        """Raises ``NotFound``."""
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            repository = LifecycleRepository(session)
            part, versions = repository.page(row, page), repository.versions(row)
            items = [
                _recovery(item) if isinstance(item, Recovery) else _operation(item, versions) for item in part.rows
            ]
            return Page(items=items, next_cursor=part.next_cursor)


def _operation(row: Operation, versions: Mapping[int, Version]) -> LifecycleItem:
    version = versions.get(row.arguments.get("version", 0))
    message = row.arguments.get("message") if version is None else version.message
    return LifecycleItem(
        kind=cast(LifecycleKind, row.kind),
        operation=row.id,
        execution=row.execution,
        state=cast(OperationState, row.state),
        by=row.created_by,
        message=message,
        cause=None,
        error=None if row.error is None else Problem.model_validate(row.error),
        before=None if version is None else _settings(_version_before(version, versions)),
        after=_settings(version),
        attempt=None,
        began_at=row.created_at,
        ended_at=row.finished_at,
        seconds=_seconds(row.created_at, row.finished_at),
    )


def _recovery(recovery: Recovery) -> LifecycleItem:
    before, attempt = recovery.before, recovery.attempt
    begun = attempt.begun_at
    if begun is not None:
        state: OperationState = "succeeded"
    else:
        state = "running" if attempt.state == "running" else "failed"
    ended_at = attempt.ended_at if begun is None else begun
    return LifecycleItem(
        kind="recovery",
        operation=None,
        execution=attempt.execution,
        state=state,
        by=None,
        message=None,
        cause=failure_of(before.failure),
        error=None,
        before=None,
        after=None,
        attempt=attempt.number,
        began_at=recovery.began_at,
        ended_at=ended_at,
        seconds=_seconds(recovery.began_at, ended_at),
    )


def _version_before(version: Version, versions: Mapping[int, Version]) -> Version | None:
    """The version that the application had before, which is not one whose upgrade failed."""
    usable = [number for number, row in versions.items() if number < version.number and row.failure is None]
    return versions[max(usable)] if usable else None


def _settings(version: Version | None) -> RunSettings | None:
    if version is None:
        return None
    configuration = version.configuration
    return RunSettings(
        version=version.number,
        parallelism=configuration["parallelism"],
        parallelisms={
            name: number for name, number in configuration.get("parallelisms", {}).items() if number is not None
        },
    )


def _seconds(began: datetime, ended: datetime | None) -> float | None:
    return None if ended is None else max(0.0, (ended - began).total_seconds())
